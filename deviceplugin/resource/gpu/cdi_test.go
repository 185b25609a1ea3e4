package gpu_test

import (
	"errors"
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
	"tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/deviceplugin/resource/gpu"
)

// generator answers as a test says.
type generator struct {
	calls   atomic.Int32
	answer  func(m *machine.Machine) (*gpu.Generated, error)
	hanging chan struct{}
}

func (g *generator) Generate(m *machine.Machine) (*gpu.Generated, error) {
	g.calls.Add(1)
	if g.hanging != nil {
		<-g.hanging
	}
	if g.answer != nil {
		return g.answer(m)
	}
	out := &gpu.Generated{Common: specs.ContainerEdits{Env: []string{"DRIVER=" + m.Driver.Version}}}
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
	cache, err := cdi.NewCache(cdi.WithSpecDirs(dir), cdi.WithAutoRefresh(false))
	if err != nil {
		t.Fatal(err)
	}
	if faults := cache.GetErrors(); len(faults) > 0 {
		t.Errorf("specs that no runtime takes: %v", faults)
	}
	list := cache.ListDevices()
	common := slices.Index(list, gpu.DriverKind+"="+gpu.CommonDevice)
	if len(list) > 0 && common < 0 {
		t.Errorf("devices %v without %s", list, gpu.CommonDevice)
	}
	if common >= 0 {
		list = slices.Delete(list, common, common+1)
	}
	return list
}

func TestACardThatIsChosenLate(t *testing.T) {
	dir := t.TempDir()
	d := gpu.NewDriverSpec(dir, &generator{}, nil)
	if err := d.Update(t.Context(), cards(2)); err != nil {
		t.Fatal(err)
	}
	want := device("GPU-1").ContainerEdits
	got, err := d.CardEdits("GPU-1")
	if diff := cmp.Diff(&want, got); diff != "" || err != nil {
		t.Errorf("edits of one card (-want +got):\n%s%v", diff, err)
	}
	if got, err := d.CardEdits("GPU-7"); err == nil || err.Error() != "the driver's CDI spec has no GPU GPU-7" {
		t.Errorf("a card that is not there has %+v, error %v", got, err)
	}
	cache, err := cdi.NewCache(cdi.WithSpecDirs(dir), cdi.WithAutoRefresh(false))
	if err != nil {
		t.Fatal(err)
	}
	spec := &oci.Spec{Process: &oci.Process{}, Linux: &oci.Linux{}}
	if _, err := cache.InjectDevices(spec, d.Names([]string{gpu.CommonDevice})...); err != nil {
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
	d := gpu.NewDriverSpec(dir, g, nil)
	m := cards(2)
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
	sick := cards(2)
	sick.GPUs[0].Health = machine.Health{State: machine.Unhealthy, Reason: "ECC"}
	update(sick, 1)

	newer := cards(2)
	newer.Driver.Version = "580.1"
	update(newer, 2)
	text, err := os.ReadFile(filepath.Join(dir, gpu.DriverFile))
	if err != nil || !strings.Contains(string(text), "DRIVER=580.1") {
		t.Errorf("the spec is not the new driver's: %s %v", text, err)
	}
	if err := os.Remove(filepath.Join(dir, gpu.DriverFile)); err != nil {
		t.Fatal(err)
	}
	update(newer, 2)
	if err := os.WriteFile(filepath.Join(dir, gpu.DriverFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := d.Mend(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, inRuntime(t, dir)); diff != "" {
		t.Errorf("devices after it was spoilt (-want +got):\n%s", diff)
	}
	update(cards(0), 2)
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("without GPUs there is still %v", left)
	}
	update(cards(0), 2)
}

func TestLostGPUKeepsItsDevice(t *testing.T) {
	dir := t.TempDir()
	answer := func(m *machine.Machine) (*gpu.Generated, error) {
		out := &gpu.Generated{Missing: map[string]string{}}
		for i := range m.GPUs {
			if m.GPUs[i].Health.State == machine.Lost {
				out.Missing[m.GPUs[i].UUID] = "lost"
				continue
			}
			out.Devices = append(out.Devices, device(m.GPUs[i].UUID))
		}
		return out, nil
	}
	d := gpu.NewDriverSpec(dir, &generator{answer: answer}, nil)
	if err := d.Update(t.Context(), cards(2)); err != nil {
		t.Fatal(err)
	}
	lost := cards(2)
	lost.GPUs[1].Health.State = machine.Lost
	if err := d.Update(t.Context(), lost); err != nil {
		t.Fatal(err)
	}
	if got := inRuntime(t, dir); len(got) != 2 {
		t.Errorf("devices %v: a container of the lost GPU could not even be created to fail", got)
	}
	if err := d.Update(t.Context(), cards(1)); err != nil {
		t.Fatal(err)
	}
	if got := inRuntime(t, dir); len(got) != 1 {
		t.Errorf("devices %v: one GPU has left the machine", got)
	}
}

func TestDriverSpecTellsWhatIsWrong(t *testing.T) {
	dir := t.TempDir()
	g := &generator{}
	d := gpu.NewDriverSpec(dir, g, nil)
	if err := d.Update(t.Context(), cards(1)); err != nil {
		t.Fatal(err)
	}
	before := inRuntime(t, dir)
	broken := errors.New("no libcuda.so.580.1")
	g.answer = func(*machine.Machine) (*gpu.Generated, error) { return nil, broken }
	if err := d.Update(t.Context(), cards(2)); !errors.Is(err, broken) || !strings.Contains(d.Problem(), broken.Error()) {
		t.Errorf("error %v, problem %q", err, d.Problem())
	}
	if diff := cmp.Diff(before, inRuntime(t, dir)); diff != "" {
		t.Errorf("the spec changed (-want +got):\n%s", diff)
	}
	g.answer = func(*machine.Machine) (*gpu.Generated, error) {
		return &gpu.Generated{Devices: []specs.Device{device("GPU-0")}, Missing: map[string]string{"GPU-1": "busy"}}, nil
	}
	if err := d.Update(t.Context(), cards(2)); err == nil || !strings.Contains(d.Problem(), "GPU-1 has no CDI device: busy") {
		t.Errorf("error %v, problem %q", err, d.Problem())
	}
	g.answer = nil
	if err := d.Update(t.Context(), cards(2)); err != nil || len(inRuntime(t, dir)) != 2 || d.Problem() != "" {
		t.Errorf("not made anew after a failure: %v, %v", err, inRuntime(t, dir))
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := gpu.NewDriverSpec(filepath.Join(file, "cdi"), g, nil).Update(t.Context(), cards(1)); err == nil {
		t.Error("a directory that cannot be is no error")
	}
}

func TestDriverThatHangsIsAskedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &generator{hanging: make(chan struct{})}
		d := gpu.NewDriverSpec(t.TempDir(), g, nil)
		start := time.Now()
		for range 2 {
			if err := d.Update(t.Context(), cards(1)); err == nil {
				t.Error("a driver that hangs is no error")
			}
		}
		if took := time.Since(start); took > 2*time.Minute || g.calls.Load() != 1 {
			t.Errorf("%d calls in %s", g.calls.Load(), took)
		}
		close(g.hanging)
		synctest.Wait()
		if err := d.Update(t.Context(), cards(1)); err != nil {
			t.Errorf("the driver answers again: %v", err)
		}
	})
}

func TestFeaturesComeWithEveryGPU(t *testing.T) {
	g := &generator{answer: func(*machine.Machine) (*gpu.Generated, error) {
		return &gpu.Generated{
			Devices: []specs.Device{device("GPU-0"), device("imex-channel-0"), device("gdrcopy")},
			Missing: map[string]string{"gds": "no nodes"},
		}, nil
	}}
	d := gpu.NewDriverSpec(t.TempDir(), g, nil)
	if err := d.Update(t.Context(), cards(1)); err != nil {
		t.Fatal(err)
	}
	want := []string{"driver.heddle.dev/gpu=GPU-0", "driver.heddle.dev/gpu=gdrcopy", "driver.heddle.dev/gpu=imex-channel-0"}
	if diff := cmp.Diff(want, d.Names([]string{"GPU-0"})); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
}

func TestReplayed(t *testing.T) {
	nodes, dir := t.TempDir(), t.TempDir()
	m := cut(cards(4), 3, "1g.10gb", 1)
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
	got, err := gpu.Replayed{Dir: nodes}.Generate(m)
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
	if !strings.Contains(got.Missing["GPU-2"], "no character device") {
		t.Errorf("missing: %v", got.Missing)
	}
	d := gpu.NewDriverSpec(dir, gpu.Replayed{Dir: nodes}, nil)
	if err := d.Update(t.Context(), m); err == nil {
		t.Error("GPU-2 has no node, and nobody says so")
	}
	if devices := inRuntime(t, dir); !slices.Contains(devices, "driver.heddle.dev/gpu=MIG-3-0") || len(devices) != 3 {
		t.Errorf("in the runtime: %v", devices)
	}
}

// Without a driver NVIDIA's library must answer with an error.
func TestNVCDIWithoutADriver(t *testing.T) {
	root := t.TempDir()
	got, err := gpu.NVCDI{DriverRoot: root}.Generate(cards(1))
	if err == nil && len(got.Devices) > 0 {
		t.Errorf("devices out of nothing: %v", got.Devices)
	}
	if err == nil && got.Missing["GPU-0"] == "" {
		t.Error("no error and no reason")
	}
}
