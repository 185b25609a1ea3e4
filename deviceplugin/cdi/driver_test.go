package cdi_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	oci "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	runtime "tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/deviceplugin/cdi"
	"github.com/heddle-dev/heddle/discovery/gpu"
	"github.com/heddle-dev/heddle/discovery/gpu/nvml"
)

func nvidia() gpu.Vendors { return gpu.Vendors{nvml.Vendor()} }

// machineWith has n GPUs named GPU-0...
func machineWith(n int) *machine.Machine {
	m := &machine.Machine{}
	for i := range n {
		address := fmt.Sprintf("0000:%02x:00.0", i+1)
		m.PCI = append(m.PCI, machine.PCIFunction{Address: address, Vendor: nvml.Vendor().PCI.Vendor, Class: "0x030200"})
		m.GPUs = append(m.GPUs, machine.GPU{
			UUID: fmt.Sprintf("GPU-%d", i), Index: i, PCI: address, Health: machine.Health{State: machine.Healthy},
		})
	}
	return m
}

// generator answers as a test defines.
type generator struct {
	calls   atomic.Int32
	answer  func(m *machine.Machine) (*gpu.Edits, error)
	hanging chan struct{}
	// files is the fingerprint, problems what the node lacks.
	files    string
	problems []string
}

func (g *generator) Fingerprint() string { return g.files }

func (g *generator) Generate(m *machine.Machine) (*gpu.Edits, error) {
	g.calls.Add(1)
	if g.hanging != nil {
		<-g.hanging
	}
	if g.answer != nil {
		return g.answer(m)
	}
	out := &gpu.Edits{Common: specs.ContainerEdits{Env: []string{"DRIVER=" + m.Driver.Version}}, Problems: g.problems}
	for i := range m.GPUs {
		out.Devices = append(out.Devices, device(m.GPUs[i].UUID))
	}
	return out, nil
}

func device(name string) specs.Device {
	return specs.Device{Name: name, ContainerEdits: specs.ContainerEdits{
		DeviceNodes: []*specs.DeviceNode{{Path: "/dev/" + name, HostPath: "/dev/null", Type: "c", Permissions: "rw"}},
	}}
}

// inRuntime is the GPUs that a container runtime sees in a directory, by the
// library that containerd and CRI-O use, and what it finds wrong. Beside any
// GPU there is the device of what all have in common.
func inRuntime(t *testing.T, dir string) []string {
	t.Helper()
	cache, err := runtime.NewCache(runtime.WithSpecDirs(dir), runtime.WithAutoRefresh(false))
	if err != nil {
		t.Fatal(err)
	}
	if faults := cache.GetErrors(); len(faults) > 0 {
		t.Errorf("specs that no runtime takes: %v", faults)
	}
	list := cache.ListDevices()
	common := slices.Index(list, cdi.DriverKind+"="+cdi.CommonDevice)
	if len(list) > 0 && common < 0 {
		t.Errorf("devices %v without %s", list, cdi.CommonDevice)
	}
	if common >= 0 {
		list = slices.Delete(list, common, common+1)
	}
	return list
}

func TestGPUThatIsChosenLate(t *testing.T) {
	dir := t.TempDir()
	d := cdi.NewDriverSpec(dir, &generator{}, nvidia(), nil)
	if err := d.Update(t.Context(), machineWith(2)); err != nil {
		t.Fatal(err)
	}
	want := device("GPU-1").ContainerEdits
	got, err := d.GPUEdits("GPU-1")
	if diff := cmp.Diff(&want, got); diff != "" || err != nil {
		t.Errorf("edits of one GPU (-want +got):\n%s%v", diff, err)
	}
	if got, err := d.GPUEdits("GPU-7"); err == nil || err.Error() != "the driver's CDI spec has no GPU GPU-7" {
		t.Errorf("a GPU that is not there has %+v, error %v", got, err)
	}
	cache, err := runtime.NewCache(runtime.WithSpecDirs(dir), runtime.WithAutoRefresh(false))
	if err != nil {
		t.Fatal(err)
	}
	spec := &oci.Spec{Process: &oci.Process{}, Linux: &oci.Linux{}}
	if _, err := cache.InjectDevices(spec, d.Names([]string{cdi.CommonDevice})...); err != nil {
		t.Fatal(err)
	}
	slices.Sort(spec.Process.Env)
	if diff := cmp.Diff([]string{"DRIVER=", "NVIDIA_VISIBLE_DEVICES=void"}, spec.Process.Env); diff != "" || len(spec.Linux.Devices) > 0 {
		t.Errorf("environment (-want +got):\n%snodes %v", diff, spec.Linux.Devices)
	}
}

func TestDriverSpecFollowsTheDriver(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cdi")
	g := &generator{}
	d := cdi.NewDriverSpec(dir, g, nvidia(), nil)
	m := machineWith(2)
	update := func(m *machine.Machine, calls int) {
		t.Helper()
		if err := d.Update(t.Context(), m); err != nil || d.Problem() != "" {
			t.Fatalf("%v, problem %q", err, d.Problem())
		}
		if got := int(g.calls.Load()); got != calls {
			t.Errorf("the driver was asked %d times, want %d", got, calls)
		}
	}
	update(m, 1)
	want := []string{"driver.heddle.dev/gpu=GPU-0", "driver.heddle.dev/gpu=GPU-1"}
	if diff := cmp.Diff(want, inRuntime(t, dir)); diff != "" {
		t.Errorf("devices (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want, d.Names([]string{"GPU-0", "GPU-1"})); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
	update(m, 1)
	sick := machineWith(2)
	sick.GPUs[0].Health = machine.Health{State: machine.Unhealthy, Reason: "ECC"}
	update(sick, 1)

	newer := machineWith(2)
	newer.Driver.Version = "580.1"
	update(newer, 2)
	text, err := os.ReadFile(filepath.Join(dir, cdi.DriverFile))
	if err != nil || !strings.Contains(string(text), "DRIVER=580.1") {
		t.Errorf("the spec is not the new driver's: %s %v", text, err)
	}
	if err := os.Remove(filepath.Join(dir, cdi.DriverFile)); err != nil {
		t.Fatal(err)
	}
	update(newer, 2)
	if err := os.WriteFile(filepath.Join(dir, cdi.DriverFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := d.Restore(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, inRuntime(t, dir)); diff != "" {
		t.Errorf("devices after it was spoilt (-want +got):\n%s", diff)
	}
	update(machineWith(0), 2)
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("without GPUs there is still %v", left)
	}
	update(machineWith(0), 2)
}

// The spec follows what comes and goes on the node, and is left alone otherwise,
// also while something is wrong.
func TestDriverSpecFollowsTheNode(t *testing.T) {
	dir := t.TempDir()
	var log bytes.Buffer
	g := &generator{files: "nvidiactl", problems: []string{"no nvidia-uvm: run nvidia-modprobe"}}
	d := cdi.NewDriverSpec(dir, g, nvidia(), slog.New(slog.NewTextHandler(&log, nil)))
	update := func(calls, written int, problem string) os.FileInfo {
		t.Helper()
		err := d.Update(t.Context(), machineWith(1))
		if (err != nil) != (problem != "") || d.Problem() != problem {
			t.Errorf("error %v, problem %q, want %q", err, d.Problem(), problem)
		}
		if got := int(g.calls.Load()); got != calls {
			t.Errorf("the driver was asked %d times, want %d", got, calls)
		}
		if got := strings.Count(log.String(), "written"); got != written {
			t.Errorf("written %d times, want %d: %s", got, written, &log)
		}
		info, err := os.Stat(filepath.Join(dir, cdi.DriverFile))
		if err != nil {
			t.Fatal(err)
		}
		return info
	}
	const wrong = "no nvidia-uvm: run nvidia-modprobe"
	first := update(1, 1, wrong)
	if !os.SameFile(first, update(1, 1, wrong)) {
		t.Error("nothing changed, and the file is another one")
	}
	// Something came that the spec does not name.
	g.files = "nvidiactl nvidia-modeset"
	if !os.SameFile(first, update(2, 1, wrong)) {
		t.Error("the same content is another file")
	}
	g.files, g.problems = "nvidiactl nvidia-uvm", nil
	g.answer = func(*machine.Machine) (*gpu.Edits, error) {
		return &gpu.Edits{Common: specs.ContainerEdits{Env: []string{"UVM=1"}}, Devices: []specs.Device{device("GPU-0")}}, nil
	}
	if os.SameFile(first, update(3, 2, "")) {
		t.Error("the file is without what came")
	}
	update(3, 2, "")
	// A GPU that cannot be had is asked for again, and changes nothing.
	g.files = "nvidiactl"
	g.answer = func(*machine.Machine) (*gpu.Edits, error) {
		return &gpu.Edits{Missing: map[string]string{"GPU-0": "busy"}}, nil
	}
	d = cdi.NewDriverSpec(dir, g, nvidia(), slog.New(slog.NewTextHandler(&log, nil)))
	missing := update(4, 3, "GPU GPU-0 has no CDI device: busy")
	if !os.SameFile(missing, update(5, 3, "GPU GPU-0 has no CDI device: busy")) {
		t.Error("written again although nothing changed")
	}
}

func TestLostGPUKeepsItsDevice(t *testing.T) {
	dir := t.TempDir()
	answer := func(m *machine.Machine) (*gpu.Edits, error) {
		out := &gpu.Edits{Missing: map[string]string{}}
		for i := range m.GPUs {
			if m.GPUs[i].Health.State == machine.Lost {
				out.Missing[m.GPUs[i].UUID] = "lost"
				continue
			}
			out.Devices = append(out.Devices, device(m.GPUs[i].UUID))
		}
		return out, nil
	}
	d := cdi.NewDriverSpec(dir, &generator{answer: answer}, nvidia(), nil)
	if err := d.Update(t.Context(), machineWith(2)); err != nil {
		t.Fatal(err)
	}
	lost := machineWith(2)
	lost.GPUs[1].Health.State = machine.Lost
	if err := d.Update(t.Context(), lost); err != nil {
		t.Fatal(err)
	}
	if got := inRuntime(t, dir); len(got) != 2 {
		t.Errorf("devices %v: a container of the lost GPU could not even be created to fail", got)
	}
	if err := d.Update(t.Context(), machineWith(1)); err != nil {
		t.Fatal(err)
	}
	if got := inRuntime(t, dir); len(got) != 1 {
		t.Errorf("devices %v: one GPU has left the machine", got)
	}
}

func TestDriverSpecReportsWhatIsWrong(t *testing.T) {
	dir := t.TempDir()
	g := &generator{}
	d := cdi.NewDriverSpec(dir, g, nvidia(), nil)
	if err := d.Update(t.Context(), machineWith(1)); err != nil {
		t.Fatal(err)
	}
	before := inRuntime(t, dir)
	broken := errors.New("no libcuda.so.580.1")
	g.answer = func(*machine.Machine) (*gpu.Edits, error) { return nil, broken }
	if err := d.Update(t.Context(), machineWith(2)); !errors.Is(err, broken) || !strings.Contains(d.Problem(), broken.Error()) {
		t.Errorf("error %v, problem %q", err, d.Problem())
	}
	if diff := cmp.Diff(before, inRuntime(t, dir)); diff != "" {
		t.Errorf("the spec changed (-want +got):\n%s", diff)
	}
	g.answer = func(*machine.Machine) (*gpu.Edits, error) {
		return &gpu.Edits{Devices: []specs.Device{device("GPU-0")}, Missing: map[string]string{"GPU-1": "busy"}}, nil
	}
	if err := d.Update(t.Context(), machineWith(2)); err == nil || !strings.Contains(d.Problem(), "GPU-1 has no CDI device: busy") {
		t.Errorf("error %v, problem %q", err, d.Problem())
	}
	g.answer = nil
	if err := d.Update(t.Context(), machineWith(2)); err != nil || len(inRuntime(t, dir)) != 2 || d.Problem() != "" {
		t.Errorf("not made again after a failure: %v, %v", err, inRuntime(t, dir))
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := cdi.NewDriverSpec(filepath.Join(file, "cdi"), g, nvidia(), nil).Update(t.Context(), machineWith(1)); err == nil {
		t.Error("an invalid directory is accepted")
	}
}

func TestDriverThatHangsIsAskedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &generator{hanging: make(chan struct{})}
		d := cdi.NewDriverSpec(t.TempDir(), g, nvidia(), nil)
		start := time.Now()
		for range 2 {
			if err := d.Update(t.Context(), machineWith(1)); err == nil {
				t.Error("a hanging driver returns no error")
			}
		}
		if took := time.Since(start); took > 2*time.Minute || g.calls.Load() != 1 {
			t.Errorf("%d calls in %s", g.calls.Load(), took)
		}
		close(g.hanging)
		synctest.Wait()
		if err := d.Update(t.Context(), machineWith(1)); err != nil {
			t.Errorf("the driver answers again: %v", err)
		}
	})
}

func TestFeaturesComeWithEveryGPU(t *testing.T) {
	g := &generator{answer: func(*machine.Machine) (*gpu.Edits, error) {
		return &gpu.Edits{
			Devices: []specs.Device{device("GPU-0"), device("gds"), device("gdrcopy")},
			Missing: map[string]string{"gds": "no nodes"},
		}, nil
	}}
	d := cdi.NewDriverSpec(t.TempDir(), g, nvidia(), nil)
	if err := d.Update(t.Context(), machineWith(1)); err != nil {
		t.Fatal(err)
	}
	want := []string{"driver.heddle.dev/gpu=GPU-0", "driver.heddle.dev/gpu=gdrcopy", "driver.heddle.dev/gpu=gds"}
	if diff := cmp.Diff(want, d.Names([]string{"GPU-0"})); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
}

func TestReplayed(t *testing.T) {
	nodes, dir := t.TempDir(), t.TempDir()
	m := machineWith(4)
	m.GPUs[3].MIG = machine.MIG{Capable: true, Enabled: true, Devices: []machine.MIGDevice{{UUID: "MIG-3-0", Profile: "1g.10gb"}}}
	m.GPUs[1].Minor = new(6)
	for i, name := range []string{"GPU-0", "GPU-1", "MIG-3-0"} {
		err := unix.Mknod(filepath.Join(nodes, name), unix.S_IFCHR|0o666, int(unix.Mkdev(1, uint32(3+i))))
		if errors.Is(err, unix.EPERM) {
			t.Skip("making device nodes needs root")
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(nodes, "GPU-2"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := gpu.ReplayedEdits{Dir: nodes, Vendors: nvidia()}.Generate(m)
	if err != nil {
		t.Fatal(err)
	}
	node := func(uuid, path string) specs.Device {
		return specs.Device{Name: uuid, ContainerEdits: specs.ContainerEdits{DeviceNodes: []*specs.DeviceNode{
			{Path: path, HostPath: filepath.Join(nodes, uuid), Type: "c", Permissions: "rw"},
		}}}
	}
	want := []specs.Device{node("GPU-0", "/dev/nvidia0"), node("GPU-1", "/dev/nvidia6"), node("MIG-3-0", "/dev/nvidia3-0")}
	if diff := cmp.Diff(want, got.Devices); diff != "" {
		t.Errorf("devices (-want +got):\n%s", diff)
	}
	if !strings.Contains(got.Missing["GPU-2"], "is not a character device") {
		t.Errorf("missing: %v", got.Missing)
	}
	d := cdi.NewDriverSpec(dir, gpu.ReplayedEdits{Dir: nodes, Vendors: nvidia()}, nvidia(), nil)
	if err := d.Update(t.Context(), m); err == nil {
		t.Error("GPU-2 has no node, and Update returns no error")
	}
	if devices := inRuntime(t, dir); !slices.Contains(devices, "driver.heddle.dev/gpu=MIG-3-0") || len(devices) != 3 {
		t.Errorf("in the runtime: %v", devices)
	}
}

// Without a driver NVIDIA's library must answer with an error.
func TestEditsWithoutADriver(t *testing.T) {
	root := t.TempDir()
	got, err := nvml.New(gpu.Options{DriverRoot: root}).Generate(machineWith(1))
	if err == nil && len(got.Devices) > 0 {
		t.Errorf("devices out of nothing: %v", got.Devices)
	}
	if err == nil && got.Missing["GPU-0"] == "" {
		t.Error("no error and no reason")
	}
}
