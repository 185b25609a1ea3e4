package claims

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/heddle-dev/heddle/api/claims"
)

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
		// Its devices may be of no node, and b publishes none.
		if none := n.Of("b"); none.Room(node("b"), all[0], nil, most) != most || !none.Fits(node("b"), all, nil) ||
			none.Why(node("b"), all[0]) != "" {
			t.Error("pods with an allocated claim need devices of node b")
		}
	}
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
	full := m.claim("full", request(claims.ClassGPU, 1, nil))
	full.Status.ReservedFor = make([]resourceapi.ResourceClaimConsumerReference, 256)
	for want, pod := range map[string]*corev1.Pod{
		`claim "devices": pod "ai/p": ResourceClaim not created yet`:              m.pod("p", "none"),
		`claim "devices": resourceclaims.resource.k8s.io "gone" not found`:        sharing("p", "gone"),
		`claim "devices": ResourceClaim going is being deleted`:                   sharing("p", "going"),
		`claim "devices": ResourceClaim full would be used by more than 256 pods`: sharing("p", "full"),
		"ResourceClaim p-devices, request r: DeviceClass nothing does not exist":  m.pod("p", "", request("nothing", 1, nil)),
	} {
		if _, err := n.Demands(m, []*corev1.Pod{pod}, []bool{false}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
		if _, err := n.Demands(m, []*corev1.Pod{pod}, []bool{true}); err != nil {
			t.Errorf("a pod with a node: %v", err)
		}
	}
}
