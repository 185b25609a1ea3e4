//go:build e2e && linux

package devices

import (
	"encoding/csv"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/discovery/cgroup"
	"github.com/heddle-dev/heddle/test/cluster"
	"github.com/heddle-dev/heddle/test/cluster/image"
)

// cudaImage has one program: testdata/cuda.c.
const cudaImage = "localhost/devices-cuda-program:1"

// installed is a GPU as nvidia-smi shows it.
type installed struct {
	uuid, product, memoryMiB, driver string
}

// hardwareRig is a cluster on a machine with NVIDIA's GPUs, whose plugin, not started yet,
// reads their driver. Elsewhere the test is skipped.
func hardwareRig(t *testing.T, name, config string) (*rig, []installed) {
	t.Helper()
	if _, err := os.Stat("/proc/driver/nvidia/version"); err != nil {
		t.Skip("no driver of NVIDIA is loaded")
	}
	r := newRig(t, options{name: name, held: true, config: config})
	r.plugin.args = append(r.hostFlags(), "--state-dir", r.stateDir())
	program := filepath.Join(r.dir, "cuda")
	if dir := cluster.Prebuilt(); dir != "" {
		program = filepath.Join(dir, "cuda")
	} else if out, err := exec.CommandContext(t.Context(), "cc", "-O2", "-o", program, "testdata/cuda.c").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	spec := image.Spec{
		Name: cudaImage, Entrypoint: []string{"/cuda"},
		Files: map[string]string{"/cuda": program},
	}
	// The driver's library is linked with them; the program is not, with a new C library.
	for _, library := range []string{"libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libgcc_s.so.1"} {
		path := filepath.Join("/lib", "x86_64-linux-gnu", library)
		spec.Files[path] = path
	}
	archive := filepath.Join(r.dir, "cuda.tar")
	if err := image.Pack(t.Context(), archive, spec); err != nil {
		t.Fatal(err)
	}
	if err := r.LoadImage(t.Context(), archive); err != nil {
		t.Fatal(err)
	}
	return r, nvidiaSMI(t)
}

// hostFlags point a daemon at this machine.
func (r *rig) hostFlags() []string {
	return []string{
		"--node-name", r.Node(), "--config", filepath.Join(r.dir, "config"), "--interval", "2s",
	}
}

// nvidiaSMI is the other account of the GPUs.
func nvidiaSMI(t *testing.T) (gpus []installed) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "nvidia-smi",
		"--query-gpu=uuid,name,memory.total,driver_version", "--format=csv,noheader,nounits").Output()
	if err != nil {
		t.Fatalf("nvidia-smi: %v", err)
	}
	rows := csv.NewReader(strings.NewReader(string(out)))
	rows.TrimLeadingSpace = true
	all, err := rows.ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range all {
		gpus = append(gpus, installed{row[0], row[1], row[2], row[3]})
	}
	return gpus
}

// cudaPod is a pod that runs the CUDA program once.
func (r *rig) cudaPod(name string, limits corev1.ResourceList, args ...string) *corev1.Pod {
	p := r.pod(name, box{more: limits, args: args})
	p.Spec.Containers[0].Image = cudaImage
	p.Spec.RestartPolicy = corev1.RestartPolicyNever
	return p
}

// prints waits until a pod has printed so many lines, and returns them.
func (r *rig) prints(t *testing.T, pod string, lines int) (printed []string) {
	t.Helper()
	eventually(t, func() string {
		b, err := r.client.CoreV1().Pods(namespace).GetLogs(pod, &corev1.PodLogOptions{}).DoRaw(t.Context())
		if err != nil {
			return fmt.Sprintf("%v: %s", err, inShort(r.getPod(t, pod)))
		}
		if printed = strings.Split(strings.TrimSpace(string(b)), "\n"); len(printed) < lines || string(b) == "" {
			return fmt.Sprintf("%s has printed %q: %s", pod, printed, inShort(r.getPod(t, pod)))
		}
		return ""
	})
	t.Logf("%s printed %q", pod, printed)
	return printed
}

// number is what follows a word in a line that a pod has printed.
func number(t *testing.T, line, word string) float64 {
	t.Helper()
	rest, _ := strings.CutPrefix(line, word+" ")
	n, err := strconv.ParseFloat(strings.TrimSuffix(strings.Fields(rest + " -")[0], ":"), 64)
	if err != nil {
		t.Fatalf("%q is not the number of %s", line, word)
	}
	return n
}

// waitClosed waits until none of the daemons has a device node of the driver open.
func waitClosed(t *testing.T, daemons ...*process) {
	t.Helper()
	eventually(t, func() string {
		open, _, err := cgroup.Proc{Root: "/proc"}.Openers([]string{"/dev/nvidia"})
		if err != nil {
			return err.Error()
		}
		for _, d := range daemons {
			if slices.ContainsFunc(open, func(o cgroup.Opener) bool { return o.PID == d.pid() }) {
				return fmt.Sprintf("%s has device nodes open: %+v", d.name(), open)
			}
		}
		return ""
	})
}

// library is the file of a library that a process has loaded.
func (p *process) library(t *testing.T, name string) string {
	t.Helper()
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", p.pid()))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(maps)) {
		if at := strings.IndexByte(line, '/'); at >= 0 && strings.HasPrefix(filepath.Base(line), name) {
			return strings.TrimSpace(line[at:])
		}
	}
	t.Fatalf("the process has not loaded %s", name)
	return ""
}
