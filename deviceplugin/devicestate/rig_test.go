package devicestate

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
	cdilib "tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/deviceplugin/cdi"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
	"github.com/heddle-dev/heddle/deviceplugin/kubelet"
	"github.com/heddle-dev/heddle/test/inventorytest"
	testkubelet "github.com/heddle-dev/heddle/test/kubelet"
	"github.com/heddle-dev/heddle/test/machines"
)

const (
	gpus = "nvidia.com/gpu"
	hcas = "rdma/hca_shared_devices_ib"
)

// rig is a node: a kubelet, a device state and what a runtime would read.
type rig struct {
	tb      testing.TB
	kubelet *testkubelet.Kubelet
	*State
	options Options
	// podResources and kubeletDir are what the state reads of the kubelet.
	podResources podresources.PodResourcesListerClient
	kubeletDir   string
	machine      *machine.Machine
	config       config.NodeConfig
	// change alters the inventory that the state gets.
	change func(*inventory.Inventory)
	specs  *podSpecs
	now    time.Time
	mu     sync.Mutex // guards machine, now
}

// podSpecs are the pods of the node, by namespace and name. unknown is while the
// API server has not shown them.
type podSpecs struct {
	pods    map[string]*corev1.Pod
	unknown bool

	mu     sync.Mutex // guards events
	events []string
}

// Pod implements [API].
func (p *podSpecs) Pod(_ context.Context, pod kubelet.Pod) (*corev1.Pod, error) {
	if spec := p.pods[pod.Namespace+"/"+pod.Name]; spec != nil {
		return spec, nil
	}
	for _, spec := range p.pods {
		if string(spec.UID) == pod.UID {
			return spec, nil
		}
	}
	return nil, errors.New("not known")
}

// Watched implements [API].
func (p *podSpecs) Watched(pod kubelet.Pod) (*corev1.Pod, bool) {
	for _, spec := range p.pods {
		named := pod.Namespace == spec.Namespace && pod.Name == spec.Name
		if !p.unknown && (pod.UID == string(spec.UID) || pod.UID == "" && named) {
			return spec, true
		}
	}
	return nil, !p.unknown
}

// WarnPod implements [API].
func (p *podSpecs) WarnPod(pod kubelet.Pod, reason, message string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.events = append(p.events, fmt.Sprintf("%s %s: %s", pod, reason, message))
}

// takeEvents returns the Events since the last call.
func (p *podSpecs) takeEvents() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	events := p.events
	p.events = nil
	return events
}

func newRig(tb testing.TB, change ...func(*config.NodeConfig)) *rig {
	tb.Helper()
	dir := testkubelet.Dir(tb)
	r := &rig{
		tb: tb, kubelet: testkubelet.Start(tb, dir), machine: machines.Load(tb, "dgx-h100"),
		config: config.Default(), specs: &podSpecs{pods: map[string]*corev1.Pod{}}, now: time.Now(),
		change: func(*inventory.Inventory) {}, kubeletDir: dir,
	}
	for _, f := range change {
		f(&r.config)
	}
	conn, err := kubelet.Dial(r.kubelet.PodResourcesSocket())
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = conn.Close() })
	r.podResources = podresources.NewPodResourcesListerClient(conn)
	// It has run for a while: all its pods are known.
	for _, socket := range []string{r.kubelet.PodResourcesSocket(), r.kubelet.Socket()} {
		r.touch(socket, r.now.Add(-time.Hour))
	}
	files := tb.TempDir()
	r.options = Options{
		API:    r.specs,
		CDIDir: filepath.Join(files, "cdi"), StateDir: filepath.Join(files, "state"), DevRoot: filepath.Join(files, "dev"),
		GPUEnv: []string{"NVIDIA_VISIBLE_DEVICES=void"},
		Now: func() time.Time {
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.now
		},
	}
	r.restart()
	return r
}

// writeCheckpoint replaces the kubelet's.
func (r *rig) writeCheckpoint(content string) {
	r.tb.Helper()
	path := filepath.Join(r.kubeletDir, "device-plugins", "kubelet_internal_checkpoint")
	err := os.MkdirAll(filepath.Dir(path), 0o750)
	if err == nil {
		err = os.WriteFile(path, []byte(content), 0o600)
	}
	if err != nil {
		r.tb.Fatal(err)
	}
}

// touch sets when a file was made.
func (r *rig) touch(path string, made time.Time) {
	r.tb.Helper()
	if err := os.Chtimes(path, made, made); err != nil {
		r.tb.Fatal(err)
	}
}

// restart is a plugin that was killed and comes back.
func (r *rig) restart() {
	r.options.Kubelet = kubelet.NewReader(r.podResources, r.kubeletDir, r.options.Now)
	r.State = New(r.options, r.inventory())
}

// inventory is the node as it is configured now.
func (r *rig) inventory() *inventory.Inventory {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.config
	inv := inventorytest.Configured(r.machine, &c)
	r.change(inv)
	return inv
}

// reconfigure changes the configuration.
func (r *rig) reconfigure(change func(*config.NodeConfig)) {
	change(&r.config)
	r.Update(r.inventory())
}

func (r *rig) pass(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now = r.now.Add(d)
}

// alter replaces the machine by a changed copy.
func (r *rig) alter(change func(*machine.Machine)) {
	r.tb.Helper()
	b, err := machine.Encode(r.machine)
	if err != nil {
		r.tb.Fatal(err)
	}
	m, err := machine.Decode(b)
	if err != nil {
		r.tb.Fatal(err)
	}
	change(m)
	r.mu.Lock()
	r.machine = m
	r.mu.Unlock()
	r.Update(r.inventory())
}

func hcaNamed(m *machine.Machine, name string) *machine.HCA {
	i := slices.IndexFunc(m.HCAs, func(h machine.HCA) bool { return h.Name == name })
	return &m.HCAs[i]
}

// down and up are a cable pulled and put back.
func (r *rig) down(name string) { r.port(name, machine.PortDown) }
func (r *rig) up(name string)   { r.port(name, machine.PortActive) }

func (r *rig) port(name, state string) {
	r.tb.Helper()
	r.alter(func(m *machine.Machine) { hcaNamed(m, name).Ports[0].State = state })
}

// asks is what a container holds: resource -> device IDs.
type asks map[string][]string

// gpuIDs are the IDs of GPUs by index.
func (r *rig) gpuIDs(indices ...int) []string {
	ids := make([]string, len(indices))
	for i, index := range indices {
		at := slices.IndexFunc(r.machine.GPUs, func(g machine.GPU) bool { return g.Index == index })
		ids[i] = r.machine.GPUs[at].UUID
	}
	return ids
}

// deviceIDs are the IDs of slots on HCAs by name: "mlx5_0" is slot 0,
// "mlx5_0/3" slot 3.
func (r *rig) deviceIDs(names ...string) []string {
	all := r.machine.HCAIDs()
	ids := make([]string, len(names))
	for i, name := range names {
		name, number, _ := strings.Cut(name, "/")
		at := slices.IndexFunc(r.machine.HCAs, func(h machine.HCA) bool { return h.Name == name })
		if at < 0 {
			ids[i] = name
			continue
		}
		slot, _ := strconv.Atoi(cmp.Or(number, "0"))
		ids[i] = inventory.ReplicaID(all[at], slot)
	}
	return ids
}

func pod(name string, containers ...testkubelet.Container) testkubelet.Pod {
	return testkubelet.Pod{Namespace: "default", Name: name, UID: "uid-" + name, Containers: containers}
}

// allocate is the kubelet's Allocate for one container: it asks for names and
// writes its checkpoint. It returns the names by resource.
func (r *rig) allocate(p testkubelet.Pod, container string, want asks) map[string]string {
	r.tb.Helper()
	names := make(map[string]string)
	for resource, ids := range want {
		name, err := r.Allocate(resource, ids)
		if err != nil {
			r.tb.Fatalf("Name(%s): %v", resource, err)
		}
		r.assign(p, container, resource, ids, name)
		names[resource] = name
	}
	return names
}

func (r *rig) assign(p testkubelet.Pod, container, resource string, ids []string, name string) {
	r.tb.Helper()
	r.kubelet.Assign(p, container, resource, ids,
		&v1beta1.ContainerAllocateResponse{CdiDevices: []*v1beta1.CDIDevice{{Name: name}}})
}

// start is PreStartContainer of all resources of a container.
func (r *rig) start(want asks) {
	r.tb.Helper()
	for resource, ids := range want {
		if err := r.Prepare(r.tb.Context(), resource, ids); err != nil {
			r.tb.Fatalf("Bind(%s, %v): %v", resource, ids, err)
		}
	}
}

// seen is what a container would see, as the CDI library puts it together.
type seen struct {
	Env     []string
	Nodes   []string
	Devices cdi.Devices
}

// enter applies CDI names in a container, as a runtime does.
func (r *rig) enter(names map[string]string) (seen, error) {
	r.tb.Helper()
	cache, err := cdilib.NewCache(cdilib.WithSpecDirs(r.options.CDIDir), cdilib.WithAutoRefresh(false))
	if err != nil {
		return seen{}, err
	}
	for path, errs := range cache.GetErrors() {
		r.tb.Fatalf("CDI spec %s: %v", path, errs)
	}
	r.makeNodes()
	var list []string
	for _, name := range names {
		list = append(list, name)
	}
	slices.Sort(list)
	spec := &oci.Spec{Process: &oci.Process{}, Linux: &oci.Linux{}}
	if _, err := cache.InjectDevices(spec, list...); err != nil {
		return seen{}, err
	}
	var s seen
	s.Env = spec.Process.Env
	slices.Sort(s.Env)
	for _, d := range spec.Linux.Devices {
		s.Nodes = append(s.Nodes, strings.TrimPrefix(d.Path, "/dev/infiniband/"))
	}
	slices.Sort(s.Nodes)
	var allowed []oci.LinuxDeviceCgroup
	if spec.Linux.Resources != nil {
		allowed = spec.Linux.Resources.Devices
	}
	if len(allowed) < len(s.Nodes) {
		r.tb.Errorf("device cgroup: %v for %v", allowed, s.Nodes)
	}
	for _, d := range allowed {
		if d.Access != "rw" {
			r.tb.Errorf("device access %q", d.Access)
		}
	}
	if len(spec.Mounts) != 1 || spec.Mounts[0].Destination != cdi.DevicesFile || !slices.Contains(spec.Mounts[0].Options, "ro") {
		r.tb.Fatalf("mounts: %+v", spec.Mounts)
	}
	b, err := os.ReadFile(spec.Mounts[0].Source)
	if err == nil {
		err = json.Unmarshal(b, &s.Devices)
	}
	return s, err
}

// makeNodes makes the machine's device nodes: the library looks at them.
func (r *rig) makeNodes() {
	r.tb.Helper()
	dir := filepath.Join(r.options.DevRoot, "infiniband")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		r.tb.Fatal(err)
	}
	nodes := []string{"rdma_cm"}
	for i := range r.machine.HCAs {
		nodes = append(nodes, r.machine.HCAs[i].CharDevices.UVerbs...)
	}
	for i, node := range nodes {
		err := unix.Mknod(filepath.Join(dir, node), unix.S_IFCHR|0o666, int(unix.Mkdev(231, uint32(i))))
		if errors.Is(err, unix.EPERM) {
			r.tb.Skip("device nodes cannot be made here")
		}
		if err != nil && !errors.Is(err, unix.EEXIST) {
			r.tb.Fatal(err)
		}
	}
}

// given are the RDMA names of the HCAs in HEDDLE_HCAS.
func (s *seen) given() []string {
	for _, e := range s.Env {
		if list, ok := strings.CutPrefix(e, cdi.EnvHCAs+"="); ok && list != "" {
			return strings.Split(list, ",")
		}
	}
	return nil
}

func (r *rig) mustEnter(names map[string]string) seen {
	r.tb.Helper()
	s, err := r.enter(names)
	if err != nil {
		r.tb.Fatal(err)
	}
	return s
}

// spec is what the pod's owner wrote.
func (r *rig) spec(name string, containers ...corev1.Container) {
	p := &corev1.Pod{}
	p.Namespace, p.Name, p.UID = "default", name, types.UID("uid-"+name)
	p.Spec.Containers = containers
	r.specs.pods["default/"+name] = p
}
