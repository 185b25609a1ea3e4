package hami_test

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/sharing/hami"
)

func uidOf(name string) types.UID { return types.UID(name) }

// cluster is an API server that is watched without delay. It records what is
// asked and written, with the time since it was made.
type cluster struct {
	start time.Time

	mu          sync.Mutex
	node        *corev1.Node
	pods        map[string]*corev1.Pod
	nodeChanged chan struct{}
	podsChanged chan struct{}
	calls       []string
	// lag keeps writes of others from the watch: the cached Node.
	lag *corev1.Node
	// fail is the error of every call.
	fail  error
	state hami.State
}

func newCluster() *cluster {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1", ResourceVersion: "1", Annotations: map[string]string{}}}
	return &cluster{
		start: time.Now(), node: node, pods: map[string]*corev1.Pod{},
		nodeChanged: make(chan struct{}, 1), podsChanged: make(chan struct{}),
		state: hami.State{Enabled: true, Open: true, Resource: sgpu, GPUs: []hami.GPU{gpu(gpuA, 0)}, Local: []string{gpuA, gpuB}},
	}
}

func (c *cluster) Node() (*corev1.Node, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lag != nil {
		return c.lag, c.nodeChanged
	}
	return c.node, c.nodeChanged
}

func (c *cluster) Pods() ([]*corev1.Pod, <-chan struct{}, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var here []*corev1.Pod
	for _, p := range c.pods {
		if p.Spec.NodeName == "node1" {
			here = append(here, p)
		}
	}
	return here, c.podsChanged, true
}

func (c *cluster) call(words ...string) error {
	c.calls = append(c.calls, time.Since(c.start).String()+" "+strings.Join(words, " "))
	return c.fail
}

func (c *cluster) ReadNode(context.Context) (*corev1.Node, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.node, c.call("get node")
}

func (c *cluster) ReadPod(_ context.Context, namespace, name string) (*corev1.Pod, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.call("get pod " + name); err != nil {
		return nil, err
	}
	if p := c.pods[namespace+"/"+name]; p != nil {
		return p, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, name)
}

func (c *cluster) AnnotateNode(_ context.Context, version string, annotations map[string]*string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.call("node " + patchText(annotations)); err != nil {
		return err
	}
	if version != "" && version != c.node.ResourceVersion {
		return apierrors.NewConflict(schema.GroupResource{Resource: "nodes"}, "node1", errors.New("version"))
	}
	c.write(func(n *corev1.Node) { merge(n.Annotations, annotations) })
	c.lag = nil
	return nil
}

func (c *cluster) AnnotatePod(_ context.Context, pod types.NamespacedName, uid types.UID, annotations map[string]*string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.call("pod " + pod.Name + " " + patchText(annotations)); err != nil {
		return err
	}
	p := c.pods[pod.String()]
	if p == nil || p.UID != uid {
		return apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, pod.Name, errors.New("uid"))
	}
	p = p.DeepCopy()
	merge(p.Annotations, annotations)
	c.pods[pod.String()] = p
	return nil
}

// patchText is a patch in short: what of the GPUs is healthy, or the value.
func patchText(annotations map[string]*string) string {
	var words []string
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		value := annotations[key]
		switch {
		case value == nil:
			words = append(words, "-"+key)
		case key == wellknown.HAMiGPUs:
			healthy := strings.Count(*value, `"healthy":true`)
			words = append(words, key+"="+strconv.Itoa(healthy)+"/"+strconv.Itoa(strings.Count(*value, `"uuid"`)))
		default:
			words = append(words, key+"="+*value)
		}
	}
	return strings.Join(words, " ")
}

func merge(into map[string]string, annotations map[string]*string) {
	for key, value := range annotations {
		if value == nil {
			delete(into, key)
		} else {
			into[key] = *value
		}
	}
}

// write changes the Node; mu is held.
func (c *cluster) write(do func(*corev1.Node)) {
	next := c.node.DeepCopy()
	version, _ := strconv.Atoi(next.ResourceVersion)
	next.ResourceVersion = strconv.Itoa(version + 1)
	do(next)
	c.node = next
	select {
	case c.nodeChanged <- struct{}{}:
	default:
	}
}

func (c *cluster) locked(value string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.write(func(n *corev1.Node) { n.Annotations[lockKey] = value })
}

// put makes a pod, or takes it away.
func (c *cluster) put(name string, pod *corev1.Pod) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if pod == nil {
		delete(c.pods, "default/"+name)
	} else {
		c.pods["default/"+name] = pod
	}
	close(c.podsChanged)
	c.podsChanged = make(chan struct{})
}

func (c *cluster) set(do func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	do()
}

func (c *cluster) now() hami.State {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state
}

// take is what was asked and written since the last time.
func (c *cluster) take() []string {
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	list := c.calls
	c.calls = nil
	return list
}

const (
	gpusKey  = "metax-tech.com/node-gpu-devices"
	lockKey  = "hami.io/mutex.lock"
	phaseKey = "hami.io/bind-phase"
)

// serving runs a Bridge in a bubble, from one moment to the next.
func serving(t *testing.T, do func(c *cluster, b *hami.Plugin, stop func())) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster()
		b := hami.New(hami.Options{
			Node: "node1", Watched: c, API: c, Log: slog.New(slog.DiscardHandler),
		})
		b.Set(c.now())
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- b.Run(ctx) }()
		ended := false
		stop := func() {
			if ended {
				return
			}
			ended = true
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		do(c, b, stop)
		stop()
	})
}

func same(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// lockOf is the lock of a pod, taken in the second before bound's bind-time.
func lockOf(name string) string { return "2026-11-21T01:17:18Z,default," + name }

// prepared has the node report whether a pod's containers got their GPUs.
func (c *cluster) prepared(b *hami.Plugin, uid types.UID, ok bool) {
	c.set(func() {
		all := map[types.UID]bool{uid: ok}
		for other, had := range c.state.Prepared {
			if other != uid {
				all[other] = had
			}
		}
		c.state.Prepared = all
	})
	b.Set(c.now())
}
