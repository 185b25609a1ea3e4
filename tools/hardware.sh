#!/usr/bin/env bash
# What a machine with GPUs needs for the tests of real hardware, into dist/hardware: the
# programs of a cluster, heddle's, NVIDIA's plugin, the tests and the benchmark. Go is not among it.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$PWD/dist/hardware
rm -rf "$out"
mkdir -p "$out/heddle" "$out/peers" "$out/test/e2e/devices" "$out/test/bench/deviceplugin" "$out/test/machines"
go run ./test/cluster/cmd/heddle-cluster pack "$out"
go build -tags grpcnotrace -ldflags '-s -w' -o "$out/heddle/" ./cmd/heddle ./cmd/heddle-node
CGO_ENABLED=0 go build -ldflags '-s -w' -o "$out/heddle/" ./cmd/heddle-cdi-hook ./test/e2e/devices/report
cc -O2 -o "$out/cuda" test/e2e/devices/testdata/cuda.c
go test -c -tags e2e -ldflags '-s -w' -o "$out/devices.test" ./test/e2e/devices
go test -c -tags grpcnotrace -ldflags '-s -w' -o "$out/bench.test" ./test/bench/deviceplugin
for program in nvidia-device-plugin gpu-feature-discovery; do
  go build -C test/peers/nvidia -ldflags '-s -w' -o "$out/peers/" github.com/NVIDIA/k8s-device-plugin/cmd/$program
done
cp test/machines/dgx-h100.json "$out/test/machines/"
cat >"$out/run" <<'RUN'
#!/usr/bin/env bash
# The tests of real hardware: root, a driver, nvidia-smi. Arguments are those of go test,
# such as -test.run '^TestHardwareMPS$'.
set -euo pipefail
cd "$(dirname "$0")/test/e2e/devices"
HEDDLE_PREBUILT=$(cd ../../.. && pwd) exec ../../../devices.test -test.run '^TestHardware' -test.v -test.timeout 10m "$@"
RUN
cat >"$out/measure" <<'RUN'
#!/usr/bin/env bash
# The device plugin beside NVIDIA's, each on this machine's driver: root, a driver.
set -euo pipefail
cd "$(dirname "$0")/test/bench/deviceplugin"
export HEDDLE_PREBUILT=$(cd ../../.. && pwd)
for one in Idle:1x Admission:300x Allocate:1000x Registration:100x; do
  ../../../bench.test -test.run '^$' -test.bench "^Benchmark${one%:*}$" -test.benchtime "${one#*:}"
done
RUN
chmod +x "$out/run" "$out/measure"
echo "copy $out to a node with NVIDIA's GPUs, and run it there as root: hardware/run"
