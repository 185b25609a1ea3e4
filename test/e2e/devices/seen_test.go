//go:build e2e && linux

package devices

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/deviceplugin/cdi"
)

// report is what report/main.go prints.
type report struct {
	Env     map[string]string `json:"env"`
	Open    map[string]string `json:"open"`
	Devices string            `json:"devices"`
	Mounted string            `json:"mounted"`
	CPUs    []int             `json:"cpus"`
	Room    map[string]int64  `json:"room"`
	// Found is keyed by directory.
	Found map[string][]string `json:"found"`
}

// seen is what a container sees: UUIDs of GPUs and RDMA names of HCAs that it
// can open, both sorted by name, and what was listed for it.
type seen struct {
	*report
	GPUs, HCAs []string
	// CM reports whether it can open rdma_cm.
	CM      bool
	Devices *cdi.Devices // nil without the file
}

// report is the last line of a container's log: that of its latest start.
func (r *rig) report(t *testing.T, pod, container string) *report {
	t.Helper()
	var got *report
	eventually(t, func() string {
		var err error
		got, err = r.tryReport(t.Context(), pod, container)
		if err != nil {
			return err.Error()
		}
		return ""
	})
	return got
}

func (r *rig) tryReport(ctx context.Context, pod, container string) (*report, error) {
	b, err := r.client.CoreV1().Pods(namespace).
		GetLogs(pod, &corev1.PodLogOptions{Container: container}).DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("logs of %s/%s: %w", pod, container, err)
	}
	return parseReport(b)
}

// ask has a running container look again.
func (r *rig) ask(t *testing.T, pod, container string) *report {
	t.Helper()
	out, err := r.Kubectl(t.Context(), "exec", pod, "-c", container, "--", "/report", "once")
	if err != nil {
		t.Fatal(err)
	}
	got, err := parseReport([]byte(out))
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// parseReport takes the last line of JSON.
func parseReport(b []byte) (*report, error) {
	var last string
	for line := range strings.Lines(string(b)) {
		if strings.HasPrefix(line, "{") {
			last = line
		}
	}
	got := &report{}
	if err := json.Unmarshal([]byte(last), got); err != nil {
		return nil, fmt.Errorf("report %q: %w", tail(string(b), 300), err)
	}
	return got, nil
}

// sees is what a container saw when it started. It fails the test where the
// ways to a device disagree: its node in /dev, the host's node, one that the
// container makes itself.
func (r *rig) sees(t *testing.T, pod, container string) *seen {
	t.Helper()
	s, err := interpret(r.report(t, pod, container), r.machine(t))
	if err != nil {
		t.Errorf("%s/%s: %v", pod, container, err)
	}
	return s
}

// interpret turns paths into devices.
func interpret(rep *report, m *machine.Machine) (*seen, error) {
	s := &seen{report: rep}
	var errs []error
	if rep.Devices != "" {
		s.Devices = &cdi.Devices{}
		if err := json.Unmarshal([]byte(rep.Devices), s.Devices); err != nil {
			errs = append(errs, fmt.Errorf("devices file: %w", err))
		}
		// That of claims is a file of the container's own.
		if !strings.Contains(rep.Devices, `"claims": true`) && !slices.Contains(strings.Split(rep.Mounted, ","), "ro") {
			errs = append(errs, fmt.Errorf("devices file is mounted %q", rep.Mounted))
		}
	}
	// may reports whether the device cgroup admits a device, by its name on the
	// host and, if it should be there, in /dev.
	may := func(dir, host, dev string) bool {
		mounted, made, own := rep.Open["/host/"+dir+"/"+host], rep.Open["/made/"+dir+"/"+host], rep.Open["/dev/"+dev]
		switch [3]string{mounted, made, own} {
		case [3]string{"ENXIO", "ENXIO", "ENXIO"}:
			return true
		case [3]string{"EPERM", "EPERM", ""}:
		default:
			errs = append(errs, fmt.Errorf("%s: opening the host's node is %q, an own node %q, /dev/%s %q",
				host, mounted, made, dev, own))
		}
		return false
	}
	for i := range m.GPUs {
		g := &m.GPUs[i]
		node := "nvidia" + strconv.Itoa(g.Index)
		if g.Vendor != "" {
			node = "dri/renderD" + strconv.Itoa(*g.Minor)
		}
		if len(g.MIG.Devices) > 0 {
			for j := range g.MIG.Devices {
				if d := &g.MIG.Devices[j]; d.Minor != nil && may("gpus", d.UUID, "dri/renderD"+strconv.Itoa(*d.Minor)) {
					s.GPUs = append(s.GPUs, d.UUID)
				}
			}
			continue
		}
		if may("gpus", g.UUID, node) {
			s.GPUs = append(s.GPUs, g.UUID)
		}
	}
	for i := range m.HCAs {
		for _, node := range m.HCAs[i].CharDevices.UVerbs {
			if may("infiniband", node, "infiniband/"+node) {
				s.HCAs = append(s.HCAs, m.HCAs[i].Name)
			}
		}
	}
	s.CM = may("infiniband", "rdma_cm", "infiniband/rdma_cm")
	slices.Sort(s.GPUs)
	slices.Sort(s.HCAs)
	return s, errors.Join(errs...)
}

// listed is what the environment and the file contain, in the form of seen.
func (s *seen) listed() (gpus, hcas []string) {
	if s.Devices == nil {
		return nil, nil
	}
	for _, g := range s.Devices.GPUs {
		gpus = append(gpus, g.UUID)
	}
	for _, h := range s.Devices.HCAs {
		hcas = append(hcas, h.Name)
	}
	slices.Sort(gpus)
	slices.Sort(hcas)
	return gpus, hcas
}

func list(value string) []string {
	if value == "" {
		return nil
	}
	all := strings.Split(value, ",")
	slices.Sort(all)
	return all
}

// check holds what a container sees against what it was reported, and against the
// numbers that it asked for.
func (s *seen) check(gpus, hcas int) error {
	var errs []error
	if len(s.GPUs) != gpus || len(s.HCAs) != hcas || s.CM != (hcas > 0) {
		errs = append(errs, fmt.Errorf("it can open GPUs %v, HCAs %v, rdma_cm %t; asked for %d and %d",
			s.GPUs, s.HCAs, s.CM, gpus, hcas))
	}
	listedGPUs, listedHCAs := s.listed()
	for what, pair := range map[string][2][]string{
		"GPUs, file": {s.GPUs, listedGPUs}, "GPUs, HEDDLE_GPUS": {s.GPUs, list(s.Env[cdi.EnvGPUs])},
		"HCAs, file": {s.HCAs, listedHCAs}, "HCAs, HEDDLE_HCAS": {s.HCAs, list(s.Env[cdi.EnvHCAs])},
	} {
		if diff := cmp.Diff(pair[0], pair[1]); diff != "" {
			errs = append(errs, fmt.Errorf("%s (-opened +reported):\n%s", what, diff))
		}
	}
	return errors.Join(errs...)
}

// has is sees and check.
func (r *rig) has(t *testing.T, pod, container string, gpus, hcas int) *seen {
	t.Helper()
	s := r.sees(t, pod, container)
	if err := s.check(gpus, hcas); err != nil {
		t.Errorf("%s/%s: %v", pod, container, err)
	}
	return s
}

// key names a container: pod/container.
func key(pod, container string) string { return pod + "/" + container }

// held is what PodResources reports that containers hold: IDs by resource, sorted.
func (r *rig) held(t *testing.T) map[string]map[string][]string {
	t.Helper()
	all := map[string]map[string][]string{}
	for _, p := range r.podResources(t) {
		for _, c := range p.GetContainers() {
			byResource := map[string][]string{}
			for _, d := range c.GetDevices() {
				byResource[d.GetResourceName()] = append(byResource[d.GetResourceName()], d.GetDeviceIds()...)
			}
			if len(byResource) == 0 {
				continue
			}
			for _, ids := range byResource {
				slices.Sort(ids)
			}
			all[key(p.GetName(), c.GetName())] = byResource
		}
	}
	return all
}

// record is one of the plugin's records on the node, as it is on disk.
type record struct {
	Kind     string   `json:"kind"`
	Device   string   `json:"device"`
	Resource string   `json:"resource"`
	IDs      []string `json:"ids"`
	Owner    *struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
		UID       string `json:"uid"`
		Container string `json:"container"`
	} `json:"owner"`
	HCAs   []string           `json:"hcas"`
	Class  string             `json:"class"`
	Shares []allocation.Share `json:"shares"`
}

// bindings are the records with an owner, by container.
func (r *rig) bindings(t *testing.T) map[string][]record {
	t.Helper()
	all := map[string][]record{}
	for _, rec := range r.records(t) {
		if rec.Owner != nil {
			k := key(rec.Owner.Name, rec.Owner.Container)
			all[k] = append(all[k], rec)
		}
	}
	return all
}

func (r *rig) records(t *testing.T) []record {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(r.dir, "state", "records", "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	var all []record
	for _, file := range files {
		b, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue // It was collected meanwhile.
		}
		var rec record
		if err = errors.Join(err, json.Unmarshal(b, &rec)); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		all = append(all, rec)
	}
	return all
}

// specs are the CDI specs on the node, by file name.
func (r *rig) specs(t *testing.T) map[string]*specs.Spec {
	t.Helper()
	dir := r.NodeDir("/var/run/cdi")
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]*specs.Spec{}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		spec := &specs.Spec{}
		if err = errors.Join(err, json.Unmarshal(b, spec)); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		all[filepath.Base(file)] = spec
	}
	return all
}

// sortedKeys helps messages to be the same each time.
func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
