//go:build cgo && linux

package deviceplugin

import (
	"os"
	"os/exec"
	"testing"

	"github.com/heddle-dev/heddle/test/kubelet"
)

// startNVIDIA runs NVIDIA's device plugin, of the module in test/peers/nvidia, likewise: on the same kind of
// driver and beside a kubelet of its own. Its directory is a constant, so it has a mount namespace.
func startNVIDIA(b *testing.B, n node) *plugin {
	b.Helper()
	if os.Geteuid() != 0 {
		b.Skip("a mount namespace takes root")
	}
	binary := program(b, "peers", "nvidia-device-plugin", func(file string) (string, error) {
		return file, goBuild("-C", "../../peers/nvidia", "-trimpath", "-ldflags", "-s -w", "-o", file,
			"github.com/NVIDIA/k8s-device-plugin/cmd/nvidia-device-plugin")
	})
	dir := kubelet.Dir(b)
	p := &plugin{kubelet: kubelet.Start(b, dir), gpus: n.gpus}
	cmd := exec.Command("unshare", "--mount", "sh", "-ec", `
		mount -t tmpfs tmpfs /var/lib
		mkdir /var/lib/kubelet
		mount --bind "$1" /var/lib/kubelet
		shift
		exec "$@"`, "sh", dir,
		binary, "--driver-root", n.driver, "--driver-root-ctr-path", n.driver,
		"--device-discovery-strategy", "nvml", "--fail-on-init-error")
	p.run(b, cmd)
	return p
}
