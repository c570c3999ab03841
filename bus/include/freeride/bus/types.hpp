// The list of all wire types, for whoever must go over every one: the codec's instantiations, the specification's test,
// the golden files, the fuzz test. A new type is added here and in WIRE.md.
#pragma once

#include "freeride/bus/commands.hpp"
#include "freeride/bus/device_alarm.hpp"
#include "freeride/bus/events.hpp"

namespace freeride::bus {

// X(Type): published, with kTopic and key().
#define FREERIDE_BUS_EVENTS(X) \
  X(BubbleBegin)               \
  X(BubbleEnd)                 \
  X(TaskState)                 \
  X(TaskProgress)              \
  X(WorkerState)               \
  X(PluginState)               \
  X(TrainingState)             \
  X(TrainingIteration)         \
  X(JobMeasures)               \
  X(CommandDone)               \
  X(TrainingPlan)              \
  X(GpuFault)                  \
  X(BatchState)                \
  X(DeviceAlarm)               \
  X(RecordingGap)

// X(Type): a request, with kCommand.
#define FREERIDE_BUS_COMMANDS(X) \
  X(Load)                        \
  X(ReplacePlugin)               \
  X(PlanLoad)                    \
  X(StopTask)                    \
  X(PauseTask)                   \
  X(ResumeTask)                  \
  X(RemoveTask)                  \
  X(ShowTask)                    \
  X(ReadLog)                     \
  X(ReadFile)                    \
  X(ReadPlugin)                  \
  X(Drain)                       \
  X(Uncordon)                    \
  X(ListTasks)                   \
  X(ListWorkers)                 \
  X(ListRanks)                   \
  X(ListPlugins)                 \
  X(GetStatus)                   \
  X(GetReport)                   \
  X(GetUsage)                    \
  X(TakeProfile)                 \
  X(FollowProfile)               \
  X(StopProfile)                 \
  X(ListProfiles)                \
  X(ListFaults)                  \
  X(LiftFaults)                  \
  X(RegisterWorker)              \
  X(WorkerReport)                \
  X(FetchPlugin)                 \
  X(FetchState)                  \
  X(TaskOrder)                   \
  X(WorkerPlan)                  \
  X(CreateTask)                  \
  X(ReplaceTask)                 \
  X(GetLog)                      \
  X(GetFile)                     \
  X(GetState)                    \
  X(GetPlugin)                   \
  X(SubmitBatch)                 \
  X(ShowBatch)                   \
  X(ListBatches)                 \
  X(RemoveBatch)                 \
  X(WritePlugin)

// X(Type): a reply, or a part of other types.
#define FREERIDE_BUS_PARTS(X) \
  X(Verdict)                  \
  X(HoldCost)                 \
  X(PhaseMeasures)            \
  X(TaskCounters)             \
  X(Replacement)              \
  X(Incarnation)              \
  X(ShimCounters)             \
  X(TaskInfo)                 \
  X(TaskReply)                \
  X(TasksReply)               \
  X(WorkerInfo)               \
  X(WorkersReply)             \
  X(RankInfo)                 \
  X(RanksReply)               \
  X(PluginsReply)             \
  X(StatusReply)              \
  X(ReportReply)              \
  X(UsageRow)                 \
  X(UsageReply)               \
  X(Durations)                \
  X(Profile)                  \
  X(ProfileReply)             \
  X(ProfilesReply)            \
  X(PlannedStage)             \
  X(LoadPlan)                 \
  X(FaultCount)               \
  X(FaultsReply)              \
  X(ReplacementReport)        \
  X(TaskReport)               \
  X(PhaseTotals)              \
  X(BubbleTotals)             \
  X(Ack)                      \
  X(HoldoutPlan)              \
  X(LogReply)                 \
  X(FileGrant)                \
  X(FileEntry)                \
  X(FileReply)                \
  X(DrainedWorker)            \
  X(DrainReply)               \
  X(BatchInfo)                \
  X(BatchReply)               \
  X(BatchesReply)             \
  X(TaskWork)

}  // namespace freeride::bus
