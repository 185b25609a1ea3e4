// Package hamirecord has what unmodified HAMi wrote for 18 pods on a node of eight
// shared H100 (test/machines/dgx-h100.json, Node node1) with a real API server, and
// takes each pod through HAMi's writes again: the webhook when the pod is created,
// then the decision, the node lock, the binding's annotations and the Binding.
//
// A recording is never edited. What no HAMi here wrote is a case in the test that
// needs it.
package hamirecord

import (
	"cmp"
	"embed"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/api/wellknown"
)

//go:embed 2.6.1.json 2.10.json
var files embed.FS

// The recorded versions of HAMi, and the Node of all recordings.
const (
	V26  = "2.6.1"
	V210 = "2.10"
	Node = "node1"
)

// Versions are the recorded versions of HAMi.
func Versions() []string { return []string{V26, V210} }

// Recording is what one version of HAMi wrote.
type Recording struct {
	Version string `json:"-"`
	// Node are annotations of the Node after the last pod of the first batch.
	Node map[string]string `json:"node"`
	// Pods are in the order in which HAMi chose for them.
	Pods []Pod `json:"pods"`
}

// Pod is what a user submitted, and what HAMi and the node added.
type Pod struct {
	Name      string `json:"name"`
	Submitted struct {
		Annotations    map[string]string `json:"annotations"`
		SchedulerName  string            `json:"schedulerName"`
		InitContainers []Container       `json:"initContainers"`
		Containers     []Container       `json:"containers"`
	} `json:"submitted"`
	Written struct {
		Annotations   map[string]string `json:"annotations"`
		Labels        map[string]string `json:"labels"`
		SchedulerName string            `json:"schedulerName"`
		NodeName      string            `json:"nodeName"`
	} `json:"written"`
}

// Container is a container of a submitted pod.
type Container struct {
	Name          string                         `json:"name"`
	RestartPolicy *corev1.ContainerRestartPolicy `json:"restartPolicy"`
	Limits        map[string]string              `json:"limits"`
}

// Load reads a recording.
func Load(tb testing.TB, version string) *Recording {
	tb.Helper()
	text, err := files.ReadFile(version + ".json")
	if err != nil {
		tb.Fatal(err)
	}
	r := &Recording{Version: version}
	if err := json.Unmarshal(text, r); err != nil || len(r.Pods) != 18 {
		tb.Fatalf("HAMi %s: %d pods, error %v", version, len(r.Pods), err)
	}
	slices.SortStableFunc(r.Pods, func(a, b Pod) int { return cmp.Compare(a.chosen(), b.chosen()) })
	return r
}

// chosen is when HAMi chose, in nanoseconds. HAMi 2.6 binds a pod of which only init
// containers ask for GPUs without choosing.
func (p *Pod) chosen() int64 {
	if at, err := strconv.ParseInt(p.Written.Annotations[wellknown.HAMiPredicateTime], 10, 64); err == nil {
		return at
	}
	return p.boundAt().UnixNano()
}

// Pod is a pod of the recording.
func (r *Recording) Pod(tb testing.TB, name string) *Pod {
	tb.Helper()
	i := slices.IndexFunc(r.Pods, func(p Pod) bool { return p.Name == name })
	if i < 0 {
		tb.Fatalf("HAMi %s: no pod %s is recorded", r.Version, name)
	}
	return &r.Pods[i]
}

// Resources are the container's limits.
func (c *Container) Resources() corev1.ResourceList {
	limits := corev1.ResourceList{}
	for name, amount := range c.Limits {
		limits[corev1.ResourceName(name)] = resource.MustParse(amount)
	}
	return limits
}

// Admitted is the pod as the API server stores it at first: as submitted, after HAMi's
// webhook, which sets the scheduler and, from 2.7 on, the QoS policy.
func (p *Pod) Admitted() *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: metav1.NamespaceDefault, Name: p.Name, UID: types.UID("uid-" + p.Name), Annotations: map[string]string{},
	}}
	maps.Copy(pod.Annotations, p.Submitted.Annotations)
	if policy, ok := p.Written.Annotations[wellknown.SGPUQoSPolicyAlias]; ok {
		pod.Annotations[wellknown.SGPUQoSPolicyAlias] = policy
	}
	pod.Spec.SchedulerName = p.Written.SchedulerName
	pod.Spec.InitContainers = containers(p.Submitted.InitContainers)
	pod.Spec.Containers = containers(p.Submitted.Containers)
	return pod
}

func containers(list []Container) (all []corev1.Container) {
	for i := range list {
		c := corev1.Container{Name: list[i].Name, RestartPolicy: list[i].RestartPolicy}
		c.Resources.Limits = list[i].Resources()
		all = append(all, c)
	}
	return all
}

// Decision are the annotations and labels that HAMi's Filter writes.
func (p *Pod) Decision() (annotations, labels map[string]string) {
	annotations = maps.Clone(p.Written.Annotations)
	for _, key := range []string{wellknown.SGPUQoSPolicyAlias, wellknown.HAMiBindPhase, wellknown.HAMiBindTime} {
		delete(annotations, key)
	}
	return annotations, maps.Clone(p.Written.Labels)
}

// Lock is the value of the Node's lock, which HAMi's Bind takes first. It is gone
// when the recording was made; its format is of HAMi's pkg/util/nodelock.
func (p *Pod) Lock(name string) string {
	return strings.Join([]string{p.boundAt().UTC().Format(time.RFC3339), metav1.NamespaceDefault, name}, ",")
}

// Binding are the annotations that HAMi's Bind writes before the Binding.
func (p *Pod) Binding() map[string]string {
	return map[string]string{
		wellknown.HAMiBindPhase: "allocating", wellknown.HAMiBindTime: p.Written.Annotations[wellknown.HAMiBindTime],
	}
}

// Bound is the pod after all writes of HAMi.
func (p *Pod) Bound() *corev1.Pod {
	pod := p.Admitted()
	annotations, labels := p.Decision()
	maps.Copy(pod.Annotations, annotations)
	maps.Copy(pod.Annotations, p.Binding())
	pod.Labels, pod.Spec.NodeName = labels, p.Written.NodeName
	return pod
}

func (p *Pod) boundAt() time.Time {
	at, _ := strconv.ParseInt(p.Written.Annotations[wellknown.HAMiBindTime], 10, 64)
	return time.Unix(at, 0)
}
