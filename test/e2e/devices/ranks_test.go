//go:build e2e && linux

package devices

import (
	"fmt"
	"maps"
	"net"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/test/cluster/image"
)

const ranksImage = "localhost/devices-ranks:1"

// packRanks makes an image with Debian's sshd and ssh, a key for both, and report.
func packRanks(t *testing.T, archive, report, port string) {
	t.Helper()
	dir := t.TempDir()
	for _, key := range []string{"host", "user"} {
		if out, err := exec.CommandContext(t.Context(), "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f",
			filepath.Join(dir, key)).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	err := image.Pack(archive, image.Spec{
		Name: ranksImage,
		Files: map[string]string{
			"/usr/sbin/sshd": "/usr/sbin/sshd", "/usr/bin/ssh": "/usr/bin/ssh", "/bin/sh": "/bin/dash", "/report": report,
			"/etc/ssh/host": filepath.Join(dir, "host"), "/etc/ssh/user": filepath.Join(dir, "user"),
			"/etc/ssh/authorized": filepath.Join(dir, "user.pub"),
		},
		Data: map[string][]byte{
			"/etc/passwd": []byte("root:x:0:0::/root:/bin/sh\nsshd:x:101:65534::/run/sshd:/bin/false\n"),
			// It changes its root to this directory before it knows who comes.
			"/run/sshd/empty": nil,
			"/etc/ssh/sshd_config": fmt.Appendf(nil,
				"ListenAddress 127.0.0.1:%s\nHostKey /etc/ssh/host\nAuthorizedKeysFile /etc/ssh/authorized\nStrictModes no\n", port),
		},
		Entrypoint: []string{"/usr/sbin/sshd"},
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestRanksOverSSH is what an MPI launcher does in the documented NCCL test: a worker with 8 GPUs and 8 HCAs
// runs sshd, and a rank is started by ssh from a pod without devices. It has the worker's devices. sshd passes
// no variable on, so NCCL finds the HCAs in the file alone.
func TestRanksOverSSH(t *testing.T) {
	if _, err := exec.LookPath("/usr/sbin/sshd"); err != nil {
		t.Skip("openssh-server is not installed: ", err)
	}
	r := dgx(t)
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(free.Addr().String())
	if err := free.Close(); err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(r.dir, "ranks.tar")
	packRanks(t, archive, filepath.Join(once.built.dir, "report"), port)
	if err := r.LoadImage(t.Context(), archive); err != nil {
		t.Fatal(err)
	}
	worker, launcher := r.pod("nccl-test-worker-0", box{gpus: 8, hcas: 8}), r.pod("nccl-test-launcher", box{})
	for p, command := range map[*corev1.Pod][]string{
		worker: {"/usr/sbin/sshd", "-D", "-e"},
		launcher: {
			"/usr/bin/ssh", "-i", "/etc/ssh/user", "-o", "StrictHostKeyChecking=no", "-o", "ConnectionAttempts=20", "-p", port,
			"root@127.0.0.1", "/report", "once",
		},
	} {
		p.Spec.HostNetwork = true
		p.Spec.Containers[0].Image, p.Spec.Containers[0].Command = ranksImage, command
	}
	launcher.Spec.RestartPolicy = corev1.RestartPolicyNever
	r.create(t, worker)
	r.waitReady(t, worker.Name)
	r.create(t, launcher)
	rank, err := interpret(r.report(t, launcher.Name, "app"), r.machine(t))
	if err != nil {
		t.Fatal(err)
	}
	if len(rank.GPUs) != 8 || len(rank.HCAs) != 8 {
		t.Errorf("the rank opens %v and %v", rank.GPUs, rank.HCAs)
	}
	var ports []string
	for i, hca := range rank.Devices.HCAs {
		ports = append(ports, hca.Name+":1")
		if near := rank.Devices.GPUs[i].HCA; near != hca.Name {
			t.Errorf("the HCA nearest to GPU %d is %s, and %s is at its place", i, near, hca.Name)
		}
	}
	if want := "NCCL_IB_HCA==" + strings.Join(ports, ","); rank.NCCL != want {
		t.Errorf("/etc/nccl.conf has %q, want %q", rank.NCCL, want)
	}
	if names := slices.Sorted(maps.Keys(rank.Env)); slices.ContainsFunc(names, func(name string) bool {
		return strings.HasPrefix(name, "NCCL_") || strings.HasPrefix(name, "NVIDIA_")
	}) {
		t.Errorf("sshd passes %v on: the file proves nothing", names)
	}
}
