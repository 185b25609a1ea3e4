package claims

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/heddle-dev/heddle/api/claims"
)

// Key is equal for demands that the same devices meet.
type Key [sha256.Size]byte

// Demand has the claims of a pod: those that need devices, and where the others have theirs. It is not changed once
// made.
type Demand struct {
	Key Key
	// Devices are the numbers of devices by DeviceClass, without alternatives, and GPUs those of heddle's whole GPUs.
	Devices map[string]int64
	GPUs    int64
	// Waits names a claim of several pods that has no devices yet; empty without one. With OneNode it asks for devices of
	// a node, which all of these pods must then have.
	Waits   string
	OneNode bool

	// claims need devices; the pod knows them by these names.
	claims []*resourceapi.ResourceClaim
	names  []string
	shared map[types.UID]bool
	pins   []pin
}

// pin is where the devices of an allocated claim can be used.
type pin struct {
	claim string
	nodes *nodeaffinity.NodeSelector
}

// Lister has ResourceClaims.
type Lister interface {
	Get(namespace, name string) (*resourceapi.ResourceClaim, error)
	// GetPendingAllocation returns the allocation of a claim that is not written yet.
	GetPendingAllocation(claim types.UID) *resourceapi.AllocationResult
}

// Demands returns the demands of pods with claims, by their place. Placed pods have a node: their own claims count as
// they were before, so that they are like those of the pods that wait. A claim that is not created yet is like that of
// another pod by the same template; the error names the first that is not known.
func (n *Nodes) Demands(from Lister, pods []*corev1.Pod, placed []bool) ([]*Demand, error) {
	r := reader{
		Lister: from, classes: n.classes, byTemplate: map[string]*resourceapi.ResourceClaim{}, users: map[types.UID]int{},
	}
	for _, pod := range pods {
		for i := range pod.Spec.ResourceClaims {
			r.learn(pod, &pod.Spec.ResourceClaims[i])
		}
	}
	out := make([]*Demand, len(pods))
	for i, pod := range pods {
		if len(pod.Spec.ResourceClaims) == 0 {
			continue
		}
		var err error
		if out[i], err = r.demand(pod, placed[i]); err != nil && !placed[i] {
			return nil, fmt.Errorf("pod %s: %w", pod.Name, err)
		}
	}
	return out, nil
}

// reader reads the claims of pods that are planned together.
type reader struct {
	Lister
	classes Classes
	// byTemplate has a claim of each template, and users counts the pods of each claim.
	byTemplate map[string]*resourceapi.ResourceClaim
	users      map[types.UID]int
}

func templateOf(pod *corev1.Pod, ref *corev1.PodResourceClaim) string {
	if ref.ResourceClaimTemplateName == nil {
		return ""
	}
	return pod.Namespace + "/" + *ref.ResourceClaimTemplateName
}

// learn counts a user of a claim, and keeps it as an example of its template.
func (r *reader) learn(pod *corev1.Pod, ref *corev1.PodResourceClaim) {
	name, _, err := resourceclaim.Name(pod, ref)
	if err != nil || name == nil {
		return
	}
	claim, err := r.Get(pod.Namespace, *name)
	if err != nil {
		return
	}
	r.users[claim.UID]++
	if template := templateOf(pod, ref); template != "" {
		r.byTemplate[template] = &resourceapi.ResourceClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: claim.Namespace, Name: claim.Name}, Spec: claim.Spec,
		}
	}
}

// mostPods is how many pods may use a claim at once.
const mostPods = resourceapi.ResourceClaimReservedForMaxSize

// claim returns the claim that a pod refers to, without requests if the pod does without.
func (r *reader) claim(pod *corev1.Pod, ref *corev1.PodResourceClaim) (*resourceapi.ResourceClaim, error) {
	name, _, err := resourceclaim.Name(pod, ref)
	if err == nil && name == nil {
		return &resourceapi.ResourceClaim{}, nil
	}
	var claim *resourceapi.ResourceClaim
	if err == nil {
		claim, err = r.Get(pod.Namespace, *name)
	}
	example := r.byTemplate[templateOf(pod, ref)]
	switch {
	case err != nil && example != nil:
		return example, nil
	case err != nil:
		return nil, fmt.Errorf("claim %q: %w", ref.Name, err)
	case claim.DeletionTimestamp != nil:
		return nil, fmt.Errorf("claim %q: ResourceClaim %s is being deleted", ref.Name, claim.Name)
	case r.users[claim.UID] > mostPods,
		len(claim.Status.ReservedFor) >= mostPods && !resourceclaim.IsReservedForPod(pod, claim, true):
		return nil, fmt.Errorf("claim %q: ResourceClaim %s would be used by more than %d pods, the most that "+
			"Kubernetes allows; create a claim for every %[3]d pods", ref.Name, claim.Name, mostPods)
	}
	return claim, nil
}

func (r *reader) demand(pod *corev1.Pod, placed bool) (*Demand, error) {
	d := &Demand{Devices: map[string]int64{}, shared: map[types.UID]bool{}}
	var like []any
	for i := range pod.Spec.ResourceClaims {
		claim, err := r.claim(pod, &pod.Spec.ResourceClaims[i])
		if err != nil {
			return nil, err
		}
		if len(claim.Spec.Devices.Requests) == 0 {
			continue
		}
		own := r.users[claim.UID] <= 1
		allocation := claim.Status.Allocation
		if allocation == nil {
			allocation = r.GetPendingAllocation(claim.UID)
		}
		switch {
		case allocation != nil && (!own || !placed):
			if allocation.NodeSelector == nil {
				continue
			}
			nodes, err := nodeaffinity.NewNodeSelector(allocation.NodeSelector)
			if err != nil {
				return nil, fmt.Errorf("claim %q: %w", pod.Spec.ResourceClaims[i].Name, err)
			}
			d.pins, like = append(d.pins, pin{pod.Spec.ResourceClaims[i].Name, nodes}), append(like, allocation.NodeSelector)
			continue
		case own:
			like = append(like, claim.Spec)
		default:
			d.OneNode = d.OneNode || ofNode(claim)
			d.Waits, d.shared[claim.UID], like = claim.Name, true, append(like, claim.UID)
		}
		if err := r.devices(d, claim); err != nil {
			return nil, err
		}
		d.claims, d.names = append(d.claims, claim), append(d.names, pod.Spec.ResourceClaims[i].Name)
	}
	text, _ := json.Marshal(like) // Types of the API.
	d.Key = sha256.Sum256(text)
	return d, nil
}

// devices counts the devices of a claim.
func (r *reader) devices(d *Demand, claim *resourceapi.ResourceClaim) error {
	for i := range claim.Spec.Devices.Requests {
		request := &claim.Spec.Devices.Requests[i]
		for _, class := range classesOf(request) {
			if _, err := r.classes.Get(class); err != nil {
				return fmt.Errorf("ResourceClaim %s, request %s: %w", claim.Name, request.Name, err)
			}
		}
		if one := request.Exactly; one != nil {
			n := max(1, one.Count)
			d.Devices[one.DeviceClassName] += n
			if one.DeviceClassName == claims.ClassGPU || one.DeviceClassName == claims.ClassPair {
				d.GPUs += n
			}
		}
	}
	return nil
}

// ofNode reports whether a claim asks for devices of heddle's that a node has alone.
func ofNode(claim *resourceapi.ResourceClaim) bool {
	return slices.ContainsFunc(claim.Spec.Devices.Requests, func(r resourceapi.DeviceRequest) bool {
		return slices.ContainsFunc(classesOf(&r), func(class string) bool {
			return strings.HasSuffix(class, claims.ClassSuffix) && class != string(claims.IMEX)+claims.ClassSuffix
		})
	})
}

// classesOf returns the DeviceClasses of a request.
func classesOf(request *resourceapi.DeviceRequest) (names []string) {
	if request.Exactly != nil {
		names = append(names, request.Exactly.DeviceClassName)
	}
	for i := range request.FirstAvailable {
		names = append(names, request.FirstAvailable[i].DeviceClassName)
	}
	return names
}

// Obstacle returns why a node cannot use devices that the pod's claims have already; empty if it can.
func (d *Demand) Obstacle(node *corev1.Node) string {
	if d == nil {
		return ""
	}
	for _, p := range d.pins {
		if !p.nodes.Match(node) {
			return fmt.Sprintf("claim %q has its devices elsewhere", p.claim)
		}
	}
	return ""
}
