package claims

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/api/claims"
)

// manager stands for the scheduler's view of DRA.
type manager struct {
	framework.SharedDRAManager
	framework.ResourceClaimTracker

	slices  []*resourceapi.ResourceSlice
	claims  map[string]*resourceapi.ResourceClaim
	pending map[types.UID]*resourceapi.AllocationResult
	state   *structured.AllocatedState
	classes
}

type classes []*resourceapi.DeviceClass

func (c classes) Get(name string) (*resourceapi.DeviceClass, error) { return Classes{}.Get(name) }

func (c classes) List() ([]*resourceapi.DeviceClass, error)       { return c, nil }
func (m *manager) ResourceClaims() framework.ResourceClaimTracker { return m }
func (m *manager) ResourceSlices() framework.ResourceSliceLister  { return m }
func (m *manager) DeviceClasses() framework.DeviceClassLister     { return m.classes }

func (m *manager) GatherAllocatedState() (*structured.AllocatedState, error) { return m.state, nil }
func (m *manager) List() ([]*resourceapi.ResourceClaim, error)               { return nil, nil }

func (m *manager) Get(namespace, name string) (*resourceapi.ResourceClaim, error) {
	if c := m.claims[namespace+"/"+name]; c != nil {
		return c, nil
	}
	return nil, apierrors.NewNotFound(resourceapi.Resource("resourceclaims"), name)
}

func (m *manager) GetPendingAllocation(uid types.UID) *resourceapi.AllocationResult {
	return m.pending[uid]
}

func (m *manager) ListWithDeviceTaintRules() ([]*resourceapi.ResourceSlice, error) {
	return m.slices, nil
}

// newManager is for nodes of four GPUs, each with an HCA and the pair of both.
func newManager(nodes ...string) *manager {
	m := &manager{
		state: NewState(), claims: map[string]*resourceapi.ResourceClaim{},
		pending: map[types.UID]*resourceapi.AllocationResult{},
	}
	for name, device := range map[string]claims.Type{
		claims.ClassGPU: claims.GPU, claims.ClassPair: claims.Pair, "hca.heddle.dev": claims.HCA, "sgpu.heddle.dev": claims.GPU,
	} {
		class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}}
		class.Spec.Selectors = selectors("device.driver == '%[1]s' && device.attributes['%[1]s'].type == '%[2]s'", claims.Driver, device)
		if name == claims.ClassGPU {
			class.Spec.ExtendedResourceName = new("nvidia.com/gpu")
		}
		m.classes = append(m.classes, class)
	}
	for _, node := range nodes {
		slice := func(s resourceapi.ResourceSliceSpec) {
			s.Driver, s.NodeName = claims.Driver, &node
			s.Pool = resourceapi.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 2}
			m.slices = append(m.slices, &resourceapi.ResourceSlice{Spec: s})
		}
		var devices []resourceapi.Device
		var sets []resourceapi.CounterSet
		for i := range 4 {
			gpu, hca := fmt.Sprint("gpu-", i), fmt.Sprint("hca-", i)
			whole, port := device(gpu, claims.GPU, gpu, i, gpu), device(hca, claims.HCA, "", i, hca)
			whole.AllowMultipleAllocations = new(true)
			whole.Capacity = map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
				claims.CapacityVCore: capacity("100"), claims.CapacityVMemory: capacity("80Gi"),
			}
			devices = append(devices, whole, port, device(fmt.Sprint("pair-", i), claims.Pair, gpu, i, gpu, hca))
			for _, name := range []string{gpu, hca} {
				sets = append(sets, resourceapi.CounterSet{Name: name, Counters: map[string]resourceapi.Counter{
					"use": {Value: resource.MustParse("1")},
				}})
			}
		}
		slice(resourceapi.ResourceSliceSpec{Devices: devices})
		slice(resourceapi.ResourceSliceSpec{SharedCounters: sets})
	}
	return m
}

func capacity(all string) resourceapi.DeviceCapacity {
	q := resource.MustParse(all)
	return resourceapi.DeviceCapacity{Value: q, RequestPolicy: &resourceapi.CapacityRequestPolicy{
		Default: &q, ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: new(resource.MustParse("1"))},
	}}
}

// device returns a device as heddle's driver publishes it, one of its rail.
func device(name string, of claims.Type, uuid string, rail int, counters ...string) resourceapi.Device {
	d := resourceapi.Device{Name: name, Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
		claims.AttributeType: {StringValue: new(string(of))}, claims.AttributeUUID: {StringValue: &uuid},
		claims.AttributeRail: {IntValue: new(int64(rail))}, claims.AttributeNVLink: {IntValue: new(int64(rail / 2))},
	}}
	for _, set := range counters {
		d.ConsumesCounters = append(d.ConsumesCounters, resourceapi.DeviceCounterConsumption{
			CounterSet: set, Counters: map[string]resourceapi.Counter{"use": {Value: resource.MustParse("1")}},
		})
	}
	return d
}

func selectors(format string, args ...any) []resourceapi.DeviceSelector {
	return []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: fmt.Sprintf(format, args...)}}}
}

// request asks for devices of a class; change may be nil.
func request(class string, count int64, change func(*resourceapi.ExactDeviceRequest)) resourceapi.DeviceRequest {
	one := &resourceapi.ExactDeviceRequest{
		DeviceClassName: class, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count,
	}
	if change != nil {
		change(one)
	}
	return resourceapi.DeviceRequest{Name: "r", Exactly: one}
}

func share(vcore, vmemory string) func(*resourceapi.ExactDeviceRequest) {
	return func(one *resourceapi.ExactDeviceRequest) {
		one.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{
			claims.CapacityVCore: resource.MustParse(vcore), claims.CapacityVMemory: resource.MustParse(vmemory),
		}}
	}
}

// pod adds a pod with a claim of its own by a template, which exists unless it has no requests.
func (m *manager) pod(name, template string, requests ...resourceapi.DeviceRequest) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ai", Name: name, UID: types.UID(name)}}
	p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "devices", ResourceClaimTemplateName: &template}}
	if requests == nil {
		return p
	}
	p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "devices", ResourceClaimName: new(name + "-devices")}}
	m.claim(name+"-devices", requests...)
	return p
}

func (m *manager) claim(name string, requests ...resourceapi.DeviceRequest) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ai", Name: name, UID: types.UID(name)}}
	c.Spec.Devices.Requests = requests
	m.claims["ai/"+name] = c
	return c
}

func sharing(name, claim string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ai", Name: name, UID: types.UID(name)}}
	p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "devices", ResourceClaimName: &claim}}
	return p
}

// read returns the devices of the manager's nodes.
func (m *manager) read(t *testing.T, into *Nodes) *Nodes {
	t.Helper()
	c, err := Read(m)
	if err != nil {
		t.Fatal(err)
	}
	into.Update(c)
	return into
}

func (m *manager) demands(t *testing.T, n *Nodes, pods ...*corev1.Pod) []*Demand {
	t.Helper()
	all, err := n.Demands(m, pods, make([]bool, len(pods)))
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// allocate gives devices of node a to a claim.
func (m *manager) allocate(names ...string) {
	for _, name := range names {
		m.state.AllocatedDevices.Insert(structured.MakeDeviceID(claims.Driver, "a", name))
	}
}

const most = 110

func node(name string) *corev1.Node { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}} }

func TestRoom(t *testing.T) {
	for _, tt := range []struct {
		what    string
		request resourceapi.DeviceRequest
		used    []string
		beside  []resourceapi.DeviceRequest
		want    int64
	}{
		{"GPUs", request(claims.ClassGPU, 1, nil), nil, nil, 4},
		{"two GPUs each", request(claims.ClassGPU, 2, nil), []string{"gpu-1"}, nil, 1},
		{"pairs beside an HCA in use", request(claims.ClassPair, 1, nil), []string{"hca-0"}, nil, 3},
		{"GPUs beside a pair in use", request(claims.ClassGPU, 1, nil), []string{"pair-3"}, nil, 3},
		{"five of four", request(claims.ClassPair, 5, nil), nil, nil, 0},
		{"shares", request("sgpu.heddle.dev", 1, share("30", "24Gi")), []string{"pair-0"}, nil, 9},
		{"more memory than a GPU has", request("sgpu.heddle.dev", 1, share("30", "81Gi")), nil, nil, 0},
		{
			"GPUs beside a planned share", request(claims.ClassGPU, 1, nil), nil,
			[]resourceapi.DeviceRequest{request("sgpu.heddle.dev", 1, share("1", "1Gi"))},
			3,
		},
		{
			"pairs beside planned HCAs", request(claims.ClassPair, 2, nil), nil,
			[]resourceapi.DeviceRequest{request("hca.heddle.dev", 2, nil)},
			1,
		},
		{
			"shares beside planned ones like them", request("sgpu.heddle.dev", 1, share("30", "24Gi")), nil,
			slices.Repeat([]resourceapi.DeviceRequest{request("sgpu.heddle.dev", 1, share("30", "24Gi"))}, 5), 7,
		},
		{"a selector", request(claims.ClassGPU, 1, func(one *resourceapi.ExactDeviceRequest) {
			one.Selectors = selectors("device.attributes['%s'].rail > 2", claims.Driver)
		}), nil, nil, 1},
		{"an unknown attribute", request(claims.ClassGPU, 1, func(one *resourceapi.ExactDeviceRequest) {
			one.Selectors = selectors("device.attributes['%s'].color == 'red'", claims.Driver)
		}), nil, nil, 0},
	} {
		t.Run(tt.what, func(t *testing.T) {
			m := newManager("a", "b")
			m.allocate(tt.used...)
			n := m.read(t, New(t.Context()))
			pods := []*corev1.Pod{m.pod("one", "", tt.request)}
			for i, r := range tt.beside {
				pods = append(pods, m.pod(fmt.Sprint("beside-", i), "", r))
			}
			all := m.demands(t, n, pods...)
			for range 2 { // The second time from memory.
				if got := n.Of("a").Room(node("a"), all[0], all[1:], most); got != tt.want {
					t.Errorf("room for %d pods, want %d", got, tt.want)
				}
			}
			if tt.want > 0 {
				together := append(slices.Clone(all[1:]), slices.Repeat(all[:1], int(tt.want))...)
				if !n.Of("a").Fits(node("a"), together, nil) || n.Of("a").Fits(node("a"), append(together, all[0]), nil) {
					t.Errorf("what fits together is not %d pods", tt.want)
				}
			}
			if n.Of("c").Room(node("c"), all[0], nil, most) != 0 {
				t.Error("a node without devices has room")
			}
		})
	}
}

// A constraint holds for the devices of each pod.
func TestConstraint(t *testing.T) {
	m := newManager("a")
	m.allocate("gpu-0")
	n := m.read(t, New(t.Context()))
	pod := m.pod("one", "", request(claims.ClassGPU, 2, nil))
	attribute := resourceapi.FullyQualifiedName(claims.Driver + "/" + claims.AttributeNVLink)
	m.claims["ai/one-devices"].Spec.Devices.Constraints = []resourceapi.DeviceConstraint{{MatchAttribute: &attribute}}
	if got := n.Of("a").Room(node("a"), m.demands(t, n, pod)[0], nil, most); got != 1 {
		t.Errorf("room for %d pods, want that of GPUs 2 and 3", got)
	}
}

func TestFreeGPUs(t *testing.T) {
	m := newManager("a", "b")
	taint := []resourceapi.DeviceTaint{{Key: claims.TaintUnhealthy, Effect: resourceapi.DeviceTaintEffectNoSchedule}}
	m.slices[0].Spec.Devices[0].Taints = taint
	m.allocate("pair-1")
	id := structured.MakeDeviceID(claims.Driver, "a", "gpu-2")
	for _, part := range []types.UID{"1", "2"} {
		m.state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, &part))
	}
	n := m.read(t, New(t.Context()))
	if a, b := n.Of("a").GPUs, n.Of("b").GPUs; a != 1 || b != 4 {
		t.Errorf("%d and %d GPUs, want 1 and 4", a, b)
	}
	if got := n.Extended(); got != "nvidia.com/gpu" || New(t.Context()).Extended() != "" {
		t.Errorf("the extended resource is %q", got)
	}
	if c, err := Read(nil); err != nil || len(c.Slices) != 0 {
		t.Errorf("without DRA: %v, %v", c, err)
	}
}

// Only nodes that change are new.
func TestUpdateKeepsNodes(t *testing.T) {
	m := newManager("a", "b")
	n := m.read(t, New(t.Context()))
	a, b := n.Of("a"), n.Of("b")
	m.read(t, n)
	if n.Of("a") != a || n.Of("b") != b {
		t.Error("nothing changed, and nodes are new")
	}
	m.state = NewState()
	m.allocate("gpu-0")
	m.read(t, n)
	if n.Of("a") == a || n.Of("b") != b || n.Of("a").GPUs != 3 {
		t.Error("a GPU of node a is allocated: it alone is new")
	}
	a = n.Of("a")
	m.classes = m.classes[1:]
	if m.read(t, n); n.Of("a") == a {
		t.Error("a DeviceClass is gone, and the node is kept")
	}
}

// Claims by one template are alike, also one that is not created yet, and those of a pod with a node.
func TestDemands(t *testing.T) {
	m := newManager("a")
	n := m.read(t, New(t.Context()))
	r := request(claims.ClassPair, 4, nil)
	pods := []*corev1.Pod{m.pod("late", "four"), m.pod("one", "four", r), m.pod("bound", "four", r), m.pod("other", "", r)}
	m.claims["ai/bound-devices"].Status.Allocation = &resourceapi.AllocationResult{NodeSelector: selector("b")}
	all, err := n.Demands(m, pods, []bool{false, false, true, false})
	if err != nil {
		t.Fatal(err)
	}
	for i, d := range all {
		if d.Key != all[0].Key || d.GPUs != 4 || d.Waits != "" {
			t.Errorf("pod %s: %+v", pods[i].Name, d)
		}
	}
	if diff := cmp.Diff(map[string]int64{claims.ClassPair: 4}, all[0].Devices); diff != "" {
		t.Error(diff)
	}
	none := &corev1.Pod{}
	if got := m.demands(t, n, none)[0]; got != nil {
		t.Errorf("a pod without claims has %+v", got)
	}
}

// A claim that several pods share needs devices once, and is where it has them.
func TestSharedClaims(t *testing.T) {
	m := newManager("a")
	n := m.read(t, New(t.Context()))
	claim := m.claim("all", request(claims.ClassGPU, 4, nil))
	pods := []*corev1.Pod{sharing("one", "all"), sharing("two", "all")}
	all := m.demands(t, n, pods...)
	if all[0].Waits != "all" || !all[0].OneNode || all[0].Key != all[1].Key || !n.Of("a").Fits(node("a"), all, nil) {
		t.Errorf("both need GPUs: %+v", all)
	}
	if alone := m.demands(t, n, pods[0])[0]; alone.Waits != "" {
		t.Errorf("the claim of one pod: %+v", alone)
	}
	m.allocate("gpu-0", "gpu-1", "gpu-2", "gpu-3")
	m.read(t, n)
	for _, pending := range []bool{true, false} {
		result := &resourceapi.AllocationResult{NodeSelector: selector("a")}
		if m.pending[claim.UID] = result; !pending {
			claim.Status.Allocation = result
		}
		all = m.demands(t, n, pods...)
		if all[0].Waits != "" || !n.Of("a").Fits(node("a"), all, nil) || n.Of("a").Room(node("a"), all[0], nil, most) != most {
			t.Errorf("the claim has its GPUs (pending: %v): %+v", pending, all[0])
		}
		if all[0].Obstacle(node("a")) != "" || all[0].Obstacle(node("b")) == "" {
			t.Error("the claim is on node a")
		}
	}
}

func selector(name string) *corev1.NodeSelector {
	return &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{
		{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{name}},
	}}}}
}

// Devices that all nodes can use are counted on each.
func TestDevicesOfAllNodes(t *testing.T) {
	m := newManager("a")
	m.slices = append(m.slices, &resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{
		Driver: "net", AllNodes: new(true), Pool: resourceapi.ResourcePool{Name: "net", ResourceSliceCount: 1},
		Devices: []resourceapi.Device{{Name: "x"}, {Name: "y"}},
	}})
	m.classes = append(m.classes, &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "net"}, Spec: resourceapi.DeviceClassSpec{
		Selectors: selectors("device.driver == 'net'"),
	}})
	n := m.read(t, New(t.Context()))
	pods := []*corev1.Pod{m.pod("one", "", request("net", 1, nil)), m.pod("both", "", request("net", 1, nil), request(claims.ClassGPU, 3, nil))}
	m.claims["ai/both-devices"].Spec.Devices.Requests[1].Name = "gpus"
	for name, want := range map[string][]int64{"a": {2, 1}, "b": {2, 0}} {
		for i, d := range m.demands(t, n, pods...) {
			if got := n.Of(name).Room(node(name), d, nil, most); got != want[i] {
				t.Errorf("node %s has room for %d pods %s, want %d", name, got, pods[i].Name, want[i])
			}
		}
	}
	m.state.AllocatedDevices.Insert(structured.MakeDeviceID("net", "net", "x"))
	before := n.Of("a")
	own := m.demands(t, n, m.pod("own", "", request(claims.ClassGPU, 1, nil)))[0]
	before.Room(node("a"), own, nil, most)
	m.read(t, n)
	if diff := cmp.Diff(map[Key]room{own.Key: {pods: 4, most: most, own: true}}, n.Of("a").rooms, cmp.AllowUnexported(room{})); diff != "" {
		t.Errorf("kept of what was known (-want +got):\n%s", diff)
	}
	if n.Of("a") == before || n.Of("b").Room(node("b"), m.demands(t, n, pods...)[0], nil, most) != 1 {
		t.Error("one of the devices is allocated")
	}
}

func TestBadClaims(t *testing.T) {
	m := newManager("a")
	n := m.read(t, New(t.Context()))
	m.claim("going", request(claims.ClassGPU, 1, nil)).DeletionTimestamp = &metav1.Time{}
	for want, pod := range map[string]*corev1.Pod{
		`claim "devices": pod "ai/p": ResourceClaim not created yet`:             m.pod("p", "none"),
		`claim "devices": resourceclaims.resource.k8s.io "gone" not found`:       sharing("p", "gone"),
		`claim "devices": ResourceClaim going is being deleted`:                  sharing("p", "going"),
		"ResourceClaim p-devices, request r: DeviceClass nothing does not exist": m.pod("p", "", request("nothing", 1, nil)),
	} {
		if _, err := n.Demands(m, []*corev1.Pod{pod}, []bool{false}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
		if _, err := n.Demands(m, []*corev1.Pod{pod}, []bool{true}); err != nil {
			t.Errorf("a pod with a node: %v", err)
		}
	}
}

func TestWhy(t *testing.T) {
	rails := func(one *resourceapi.ExactDeviceRequest) {
		for _, e := range []string{"rail > 1", "rail < 1"} {
			one.Selectors = append(one.Selectors, selectors("device.attributes['%s'].%s", claims.Driver, e)...)
		}
	}
	rail := resourceapi.FullyQualifiedName(claims.Driver + "/" + claims.AttributeNVLink)
	for _, tt := range []struct {
		name     string
		used     []string
		match    *resourceapi.FullyQualifiedName
		requests []resourceapi.DeviceRequest
		want     string
	}{
		{"room", nil, nil, []resourceapi.DeviceRequest{request(claims.ClassGPU, 3, nil)}, ""},
		{
			"in use",
			[]string{"pair-0"},
			nil,
			[]resourceapi.DeviceRequest{request(claims.ClassGPU, 4, nil)},
			`request "r": 3 of 4 devices free, 4 requested`,
		},
		{
			"too many", nil, nil,
			[]resourceapi.DeviceRequest{request(claims.ClassPair, 5, nil)},
			`request "r": 4 devices of DeviceClass gpu-hca.heddle.dev, 5 requested`,
		},
		{
			"the second selector", nil, nil,
			[]resourceapi.DeviceRequest{
				request(claims.ClassGPU, 1, rails),
			},
			`request "r": 0 of 2 devices match selector device.attributes['devices.heddle.dev'].rail < 1`,
		},
		{
			"capacity that no GPU has", nil, nil,
			[]resourceapi.DeviceRequest{request("sgpu.heddle.dev", 1, share("30", "81Gi"))},
			`request "r": 0 of 4 devices have capacity vcore 30, vmemory 81Gi`,
		},
		{
			"capacity in use",
			[]string{"pair-0", "pair-1", "gpu-2", "gpu-3"},
			nil,
			[]resourceapi.DeviceRequest{request("sgpu.heddle.dev", 1, share("30", "24Gi"))},
			`request "r": 0 of 4 devices have capacity vcore 30, vmemory 24Gi free`,
		},
		{
			"a constraint",
			[]string{"gpu-0"},
			&rail,
			[]resourceapi.DeviceRequest{request(claims.ClassGPU, 3, nil)},
			`no free devices meet constraint matchAttribute devices.heddle.dev/nvlinkGroup`,
		},
		{"alternatives", []string{"gpu-0", "gpu-1", "gpu-2", "gpu-3"}, nil, []resourceapi.DeviceRequest{{
			Name: "part", FirstAvailable: []resourceapi.DeviceSubRequest{
				{Name: "hca", DeviceClassName: "hca.heddle.dev", Count: 5}, {Name: "gpu", DeviceClassName: claims.ClassGPU, Count: 1},
			},
		}}, `request "part": 4 devices of DeviceClass hca.heddle.dev, 5 requested; 0 of 4 devices free`},
		{"together", nil, nil, []resourceapi.DeviceRequest{
			request(claims.ClassGPU, 2, nil), {Name: "pairs", Exactly: request(claims.ClassPair, 3, nil).Exactly},
		}, "requests together: too few devices are free"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := newManager("a")
			m.allocate(tt.used...)
			n := m.read(t, New(t.Context()))
			pod := m.pod("one", "", tt.requests...)
			if tt.match != nil {
				m.claims["ai/one-devices"].Spec.Devices.Constraints = []resourceapi.DeviceConstraint{{MatchAttribute: tt.match}}
			}
			want := tt.want
			if want != "" {
				want = `claim "devices", ` + want
			}
			d := m.demands(t, n, pod)[0]
			if diff := cmp.Diff(want, n.Of("a").Why(node("a"), d)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if n.Of("none").Why(node("none"), d) != "no devices for claims" {
				t.Error("a node without devices")
			}
		})
	}
}

// The taints of devices count, and the claims of one pod together.
func TestWhyOfAPod(t *testing.T) {
	m := newManager("a")
	sick := []resourceapi.DeviceTaint{{Key: claims.TaintUnhealthy, Effect: resourceapi.DeviceTaintEffectNoSchedule}}
	m.slices[0].Spec.Devices[0].Taints, m.slices[0].Spec.Devices[2].Taints = sick, sick
	n := m.read(t, New(t.Context()))
	pod := m.pod("one", "", request(claims.ClassGPU, 4, nil))
	const tainted = `claim "devices", request "r": 3 of 4 devices have no taint that it does not tolerate, 4 requested`
	if got := n.Of("a").Why(node("a"), m.demands(t, n, pod)[0]); got != tainted {
		t.Error(got)
	}
	two := m.pod("two", "", request(claims.ClassGPU, 2, nil))
	more := "more"
	two.Spec.ResourceClaims = append(two.Spec.ResourceClaims, corev1.PodResourceClaim{Name: "more", ResourceClaimName: &more})
	m.claim(more, request("hca.heddle.dev", 1, nil), resourceapi.DeviceRequest{Name: "pairs", Exactly: request(claims.ClassPair, 2, nil).Exactly})
	const together = `claim "more", request "pairs": 1 of 3 devices free, 2 requested`
	if got := n.Of("a").Why(node("a"), m.demands(t, n, two)[0]); got != together {
		t.Error(got)
	}
}
