//go:build e2e && linux

package devices

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"

	"github.com/heddle-dev/heddle/api/allocation"
	apinames "github.com/heddle-dev/heddle/api/wellknown"
)

// hamiScheduler is HAMi's name as a scheduler.
const hamiScheduler = "hami-scheduler"

// The cards of testdata of package hami are these cards of the node.
const (
	firstGPU, secondGPU           = 2, 5
	firstOfGolden, secondOfGolden = "GPU-aaaa-0000-0001", "GPU-bbbb-0000-0002"
	memoryOfGolden, memoryOfH100  = "143771", "81559"
)

// hamiPod is a pod as a version of HAMi writes it: what package hami is tested
// with, from HAMi's own code.
type hamiPod struct {
	Name        string            `json:"name"`
	Annotations map[string]string `json:"annotations"`
	Init        []hamiBox         `json:"init"`
	Containers  []hamiBox         `json:"containers"`
	// Want has a list of shares, or a reason why there is none.
	Want map[string]json.RawMessage `json:"want"`
}

// hamiBox is what a container asks for; 0 is not asked for.
type hamiBox struct {
	Name      string `json:"name"`
	GPUs      int    `json:"cards"`
	VCore     int    `json:"vcore"`
	MemoryMiB int    `json:"memoryMiB"`
}

// golden is a pod of a version.
func golden(t *testing.T, version, name string) *hamiPod {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "sharing", "hami", "testdata", version+".json"))
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Pods []hamiPod `json:"pods"`
	}
	if err := json.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(file.Pods, func(p hamiPod) bool { return p.Name == name })
	if i < 0 {
		t.Fatalf("HAMi %s has no pod %q", version, name)
	}
	return &file.Pods[i]
}

// hami writes what a version of HAMi's scheduler and webhook write.
type hami struct {
	rig     *rig
	version string
	// here replaces testdata's GPUs by those of the node.
	here *strings.Replacer
}

func (r *rig) hami(t *testing.T, version string) *hami {
	t.Helper()
	return &hami{r, version, strings.NewReplacer(firstOfGolden, r.gpuAt(t, firstGPU), secondOfGolden, r.gpuAt(t, secondGPU),
		memoryOfGolden, memoryOfH100)}
}

// pod is a pod as it is after HAMi's webhook.
func (h *hami) pod(name string, g *hamiPod) *corev1.Pod {
	boxes := func(all []hamiBox, args ...string) (list []box) {
		for _, b := range all {
			limits := shares(b.GPUs, b.VCore, b.MemoryMiB/1024)
			if strings.HasPrefix(strconv.Itoa(b.MemoryMiB), memoryOfGolden) {
				delete(limits, memoryResource)
			}
			list = append(list, box{name: b.Name, more: limits, args: args})
		}
		return list
	}
	apps := boxes(g.Containers)
	p := besides(h.rig.pod(name, apps[0], boxes(g.Init, "once")...), apps[1:]...)
	p.Spec.SchedulerName = hamiScheduler
	if policy, ok := g.Annotations[apinames.SGPUQoSPolicyAlias]; ok {
		p.Annotations = map[string]string{apinames.SGPUQoSPolicyAlias: policy}
	}
	return p
}

// filter is what HAMi writes when it has chosen a node and its cards.
func (h *hami) filter(ctx context.Context, pod string, g *hamiPod, change func(map[string]string)) error {
	now := time.Now()
	annotations := map[string]string{}
	for name, text := range g.Annotations {
		switch name {
		case apinames.HAMiBindPhase, apinames.HAMiBindTime:
			continue
		case apinames.HAMiNode:
			text = h.rig.Node()
		case apinames.HAMiChosenTime:
			text = strconv.FormatInt(now.Unix(), 10)
		case apinames.HAMiPredicateTime:
			text = strconv.FormatInt(now.UnixNano(), 10)
		}
		annotations[name] = h.here.Replace(text)
	}
	if change != nil {
		change(annotations)
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"annotations": annotations, "labels": map[string]string{apinames.HAMiNode: annotations[apinames.HAMiNode]},
	}})
	if err != nil {
		return err
	}
	_, err = h.rig.client.CoreV1().Pods(namespace).Patch(ctx, pod, types.MergePatchType, body, metav1.PatchOptions{})
	return err
}

// lock takes HAMi's lock of the node for a pod: by an update up to 2.6, by a
// patch with resourceVersion later. While it is held, it fails.
func (h *hami) lock(ctx context.Context, pod string) (value string, err error) {
	at := time.Now()
	if h.version == "2.7" {
		at = at.In(time.FixedZone("CST", 8*60*60)) // It wrote its own zone.
	}
	value = strings.Join([]string{at.Format(time.RFC3339), namespace, pod}, ",")
	nodes := h.rig.client.CoreV1().Nodes()
	err = retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		n, err := nodes.Get(ctx, h.rig.Node(), metav1.GetOptions{})
		if err != nil {
			return err
		}
		if held, locked := n.Annotations[apinames.HAMiLock]; locked {
			return fmt.Errorf("node is locked by %q", held)
		}
		if h.version == "2.6" {
			n.Annotations[apinames.HAMiLock] = value
			_, err = nodes.Update(ctx, n, metav1.UpdateOptions{})
			return err
		}
		body, err := json.Marshal(map[string]any{"metadata": map[string]any{
			"annotations": map[string]string{apinames.HAMiLock: value}, "resourceVersion": n.ResourceVersion,
		}})
		if err != nil {
			return err
		}
		_, err = nodes.Patch(ctx, n.Name, types.MergePatchType, body, metav1.PatchOptions{})
		return err
	})
	return value, err
}

// bind is HAMi's: the phase on the pod, then the binding.
func (h *hami) bind(ctx context.Context, pod string) error {
	err := h.rig.annotatePod(ctx, pod, map[string]string{
		apinames.HAMiBindPhase: "allocating", apinames.HAMiBindTime: strconv.FormatInt(time.Now().Unix(), 10),
	})
	if err != nil {
		return err
	}
	return h.rig.client.CoreV1().Pods(namespace).Bind(ctx, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Name: pod, Namespace: namespace},
		Target:     corev1.ObjectReference{Kind: "Node", Name: h.rig.Node()},
	}, metav1.CreateOptions{})
}

// schedule is all of it, for a pod that the test removes. It returns how long
// after the binding the lock was seen to go.
func (h *hami) schedule(t *testing.T, name string, g *hamiPod, locks *lockLog) time.Duration {
	t.Helper()
	h.rig.create(t, h.pod(name, g))
	if err := h.filter(t.Context(), name, g, nil); err != nil {
		t.Fatal(err)
	}
	value, err := h.lock(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.bind(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	bound := time.Now()
	return max(0, locks.waitGone(t, value).Sub(bound))
}

// wanted are the shares of a container in testdata, on the node's cards; none
// for a reason.
func (h *hami) wanted(g *hamiPod, container string) (shares []allocation.Share, reason string) {
	text := h.here.Replace(string(g.Want[container]))
	err := json.Unmarshal([]byte(text), &shares)
	if err != nil {
		err = errors.Join(json.Unmarshal([]byte(text), &reason))
	}
	if err != nil {
		return nil, err.Error()
	}
	return byGPU(shares), reason
}
