"""A program of the driver API alone: launches, copies and events through libcuda, no runtime and no framework. Prints `steps N`."""

import ctypes

PTX = b""".version 7.0
.target sm_70
.address_size 64
.visible .entry grow(.param .u64 at, .param .u32 times) {
  .reg .u64 %rd<4>; .reg .u32 %r<8>; .reg .f32 %f<4>; .reg .pred %p<2>;
  ld.param.u64 %rd1, [at]; cvta.to.global.u64 %rd1, %rd1; ld.param.u32 %r1, [times];
  mov.u32 %r2, %tid.x; mov.u32 %r3, %ctaid.x; mov.u32 %r4, %ntid.x; mad.lo.u32 %r5, %r3, %r4, %r2;
  mul.wide.u32 %rd2, %r5, 4; add.u64 %rd3, %rd1, %rd2; ld.global.f32 %f1, [%rd3]; mov.u32 %r6, 0;
AGAIN: fma.rn.f32 %f1, %f1, 0f3F800001, 0f3DCCCCCD; add.u32 %r6, %r6, 1; setp.lt.u32 %p1, %r6, %r1; @%p1 bra AGAIN;
  st.global.f32 [%rd3], %f1; ret; }
"""
driver = ctypes.CDLL("libcuda.so.1")


def call(name, *args):
    code = getattr(driver, name)(*args)
    if code != 0:
        raise SystemExit(f"{name}: {code}")


def main():
    device, context, module, kernel, stream = ctypes.c_int(), *(ctypes.c_void_p() for _ in range(4))
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    call("cuModuleLoadData", ctypes.byref(module), PTX)
    call("cuModuleGetFunction", ctypes.byref(kernel), module, b"grow")
    call("cuStreamCreate", ctypes.byref(stream), 1)
    memory, host = ctypes.c_uint64(), ctypes.create_string_buffer(4096)
    call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(4 * 132 * 8 * 256))
    times = ctypes.c_uint32(40_000)
    parameters = (ctypes.c_void_p * 2)(*(ctypes.cast(ctypes.byref(one), ctypes.c_void_p) for one in (memory, times)))
    step = 0
    while True:
        for _ in range(8):
            call("cuLaunchKernel", kernel, 132 * 8, 1, 1, 256, 1, 1, 0, stream, parameters, None)
        call("cuMemcpyDtoHAsync_v2", host, memory, ctypes.c_size_t(4096), stream)
        call("cuStreamSynchronize", stream)
        step += 1
        if step % 20 == 0:
            print(f"steps {step}", flush=True)


if __name__ == "__main__":
    main()
