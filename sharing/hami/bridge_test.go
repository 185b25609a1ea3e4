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

	"github.com/heddle-dev/heddle/api/names"
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
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", ResourceVersion: "1", Annotations: map[string]string{}}}
	return &cluster{
		start: time.Now(), node: node, pods: map[string]*corev1.Pod{},
		nodeChanged: make(chan struct{}, 1), podsChanged: make(chan struct{}),
		state: hami.State{Enabled: true, Open: true, Resource: sgpu, Cards: []hami.Card{card(cardA, 0)}},
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
		if p.Spec.NodeName == "n1" {
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
	if err := c.call("node " + told(annotations)); err != nil {
		return err
	}
	if version != "" && version != c.node.ResourceVersion {
		return apierrors.NewConflict(schema.GroupResource{Resource: "nodes"}, "n1", errors.New("version"))
	}
	c.write(func(n *corev1.Node) { merge(n.Annotations, annotations) })
	c.lag = nil
	return nil
}

func (c *cluster) AnnotatePod(_ context.Context, pod types.NamespacedName, uid types.UID, annotations map[string]*string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.call("pod " + pod.Name + " " + told(annotations)); err != nil {
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

// told is a patch in short: what of the cards is healthy, or the value.
func told(annotations map[string]*string) string {
	var words []string
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		value := annotations[key]
		switch {
		case value == nil:
			words = append(words, "-"+key)
		case key == names.HAMiCards:
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
	cardsKey = "metax-tech.com/node-gpu-devices"
	lockKey  = "hami.io/mutex.lock"
	phaseKey = "hami.io/bind-phase"
)

// serving runs a Bridge in a bubble, from one moment to the next.
func serving(t *testing.T, do func(c *cluster, b *hami.Bridge, stop func())) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster()
		b := hami.New(hami.Options{
			Node: "n1", Watched: c, Reader: c, Writer: c, State: c.now, Log: slog.New(slog.DiscardHandler),
			Ours: func(uuid string) bool { return uuid == cardA || uuid == cardB },
		})
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

func TestTheLockGoesWithTheBinding(t *testing.T) {
	serving(t, func(c *cluster, _ *hami.Bridge, _ func()) {
		same(t, "cards", c.take(), "0s node "+cardsKey+"=1/1")
		c.put("p1", asking("p1", "", sgpu))
		c.locked(lockOf("p1"))
		<-time.After(500 * time.Millisecond)
		same(t, "being bound", c.take())
		c.put("p1", asking("p1", "n1", sgpu))
		same(t, "bound", c.take(), "500ms node -"+lockKey)
	})
}

func TestTheLockOfAPodThatIsNotComing(t *testing.T) {
	for _, tt := range []struct {
		name string
		pod  *corev1.Pod
		want []string
	}{
		{name: "gone", want: []string{"1s get pod p1", "1s node -" + lockKey}},
		{name: "bound elsewhere", pod: asking("p1", "n2", sgpu), want: []string{"1s get pod p1", "1s node -" + lockKey}},
		{name: "not bound", pod: asking("p1", "", sgpu), want: []string{"1s get pod p1", "2s get pod p1", "4s get pod p1", "8s get pod p1"}},
		{name: "another plugin's", pod: asking("p1", "n1", "nvidia.com/gpumem")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			serving(t, func(c *cluster, _ *hami.Bridge, _ func()) {
				c.take()
				if tt.pod != nil {
					c.put("p1", tt.pod)
				}
				c.locked(lockOf("p1"))
				<-time.After(10 * time.Second)
				same(t, "calls", c.take(), tt.want...)
			})
		})
	}
}

func TestALockThatNamesNobodyIsLeft(t *testing.T) {
	for _, value := range []string{"2026-11-21T01:17:18Z", "x", "2026-11-21T01:17:18Z,default", "2026-11-21T01:17:18Z,default,../p1"} {
		serving(t, func(c *cluster, _ *hami.Bridge, _ func()) {
			c.take()
			c.locked(value)
			<-time.After(10 * time.Minute)
			same(t, value, c.take())
		})
	}
}

// The watch still shows the last pod of the name: it is bound, but by an older
// lock.
func TestTheLockOfTheNextPodOfThatName(t *testing.T) {
	serving(t, func(c *cluster, _ *hami.Bridge, _ func()) {
		c.take()
		c.put("p1", asking("p1", "n1", sgpu))
		c.locked("2026-11-21T01:20:00Z,default,p1")
		<-time.After(500 * time.Millisecond)
		same(t, "at once", c.take())
		c.put("p1", asking("p1", "", sgpu))
		<-time.After(time.Second)
		same(t, "later", c.take(), "1s get pod p1")
		next := asking("p1", "n1", sgpu)
		next.Annotations[names.HAMiBindTime] = "1795224000"
		c.put("p1", next)
		same(t, "bound", c.take(), "1.5s node -"+lockKey)
	})
}

func TestConflicts(t *testing.T) {
	for _, tt := range []struct {
		name  string
		after string // the lock when the Node is read again
		want  []string
	}{
		{name: "somebody wrote the Node", after: lockOf("p1"), want: []string{"0s node -" + lockKey, "0s get node", "0s node -" + lockKey}},
		{name: "the lock is free", want: []string{"0s node -" + lockKey, "0s get node"}},
		{name: "the lock is another pod's", after: lockOf("p2"), want: []string{"0s node -" + lockKey, "0s get node"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			serving(t, func(c *cluster, _ *hami.Bridge, _ func()) {
				c.take()
				c.set(func() {
					c.write(func(n *corev1.Node) { n.Annotations[lockKey] = lockOf("p1") })
					c.lag = c.node
					c.write(func(n *corev1.Node) {
						if n.Annotations[lockKey] = tt.after; tt.after == "" {
							delete(n.Annotations, lockKey)
						}
					})
				})
				c.put("p1", asking("p1", "n1", sgpu))
				got := c.take()
				same(t, "calls", got[:min(len(got), len(tt.want))], tt.want...)
				if has := c.node.Annotations[lockKey]; tt.name != "somebody wrote the Node" && has != tt.after {
					t.Errorf("lock %q, want %q", has, tt.after)
				}
			})
		})
	}
}

func TestWhatFailsIsTriedAgain(t *testing.T) {
	serving(t, func(c *cluster, _ *hami.Bridge, _ func()) {
		c.take()
		c.put("p1", asking("p1", "n1", sgpu))
		c.take()
		c.set(func() { c.fail = errors.New("no API server") })
		c.locked(lockOf("p1"))
		<-time.After(3500 * time.Millisecond)
		release := "node -" + lockKey
		same(t, "calls", c.take(), "0s "+release, "1s "+release, "3s "+release)
		c.set(func() { c.fail = nil })
		<-time.After(4 * time.Second)
		same(t, "calls", c.take(), "7s "+release)
	})
}

func TestCardsArePublished(t *testing.T) {
	serving(t, func(c *cluster, b *hami.Bridge, stop func()) {
		same(t, "open from the start", c.take(), "0s node "+cardsKey+"=1/1")
		set := func(do func(*hami.State)) {
			c.set(func() { do(&c.state) })
			b.Wake()
		}
		<-time.After(time.Hour)
		same(t, "no change", c.take())

		set(func(s *hami.State) { s.Open = false })
		same(t, "the kubelet restarts", c.take(), "1h0m0s node "+cardsKey+"=0/1")
		set(func(s *hami.State) { s.Open = true })
		same(t, "it is back", c.take(), "1h0m0s node "+cardsKey+"=1/1")

		tenant := card(cardA, 0, func(c *hami.Card) { c.Tenants, c.VCore, c.UsedMiB, c.Policy = 1, 30, 2048, "fixed-share" })
		set(func(s *hami.State) { s.Cards = []hami.Card{tenant} })
		same(t, "the first tenant brings a policy", c.take(), "1h0m0s node "+cardsKey+"=1/1")
		second := tenant
		second.Tenants, second.VCore = 2, 60
		set(func(s *hami.State) { s.Cards = []hami.Card{second} })
		<-time.After(10 * time.Second)
		same(t, "another tenant changes nothing for HAMi", c.take())
		<-time.After(20 * time.Second)
		same(t, "but is told in the end", c.take(), "1h0m30s node "+cardsKey+"=1/1")
		set(func(s *hami.State) { s.Cards = []hami.Card{card(cardA, 0)} })
		same(t, "the last tenant takes the policy away", c.take(), "1h0m30s node "+cardsKey+"=1/1")

		c.set(func() { c.write(func(n *corev1.Node) { n.Annotations = map[string]string{} }) })
		same(t, "somebody removed it", c.take(), "1h0m30s node "+cardsKey+"=1/1")
		stop()
		same(t, "the process ends", c.take(), "1h0m30s node "+cardsKey+"=0/1")
	})
}

func TestCardsAreTakenAway(t *testing.T) {
	for _, tt := range []struct {
		name string
		has  string
		do   func(*hami.State)
		want []string
	}{
		{name: "HAMi is off", has: hami.Cards([]hami.Card{card(cardA, 0)}, false), do: func(s *hami.State) { s.Enabled = false }, want: []string{"0s node -" + cardsKey}},
		{name: "no card is shared", has: hami.Cards([]hami.Card{card(cardA, 0)}, true), do: func(s *hami.State) { s.Cards = nil }, want: []string{"0s node -" + cardsKey}},
		{name: "another maker's cards", has: hami.Cards([]hami.Card{card("METAX-1", 0)}, true), do: func(s *hami.State) { s.Enabled = false }},
		{name: "nonsense", has: "x", do: func(s *hami.State) { s.Enabled = false }},
		{name: "no annotation", do: func(s *hami.State) { s.Enabled = false }},
		{name: "not open yet", do: func(s *hami.State) { s.Open = false }},
		{name: "not open after a crash", has: hami.Cards([]hami.Card{card(cardA, 0)}, true), do: func(s *hami.State) { s.Open = false }, want: []string{"0s node " + cardsKey + "=0/1"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster()
				if tt.has != "" {
					c.node.Annotations[cardsKey] = tt.has
				}
				tt.do(&c.state)
				ctx, cancel := context.WithCancel(t.Context())
				b := hami.New(hami.Options{
					Node: "n1", Watched: c, Reader: c, Writer: c, State: c.now, Log: slog.New(slog.DiscardHandler),
					Ours: func(uuid string) bool { return uuid == cardA },
				})
				done := make(chan error, 1)
				go func() { done <- b.Run(ctx) }()
				<-time.After(time.Minute)
				same(t, "calls", c.take(), tt.want...)
				cancel()
				if err := <-done; err != nil {
					t.Error(err)
				}
				same(t, "calls at the end", c.take())
			})
		})
	}
}

func TestALockIsLeftWhereHAMiIsOff(t *testing.T) {
	serving(t, func(c *cluster, b *hami.Bridge, _ func()) {
		c.set(func() { c.state = hami.State{Resource: sgpu} })
		b.Wake()
		c.take()
		c.put("p1", asking("p1", "n1", sgpu))
		c.locked(lockOf("p1"))
		<-time.After(time.Minute)
		same(t, "calls", c.take())
	})
}

func TestThePodIsToldHowBindingEnded(t *testing.T) {
	serving(t, func(c *cluster, b *hami.Bridge, _ func()) {
		c.take()
		plain := asking("plain", "n1", sgpu)
		plain.Annotations = nil
		for name, pod := range map[string]*corev1.Pod{"p1": asking("p1", "n1", sgpu), "p2": asking("p2", "n1", sgpu), "plain": plain} {
			c.put(name, pod)
		}
		tell := func(name string, ok bool) {
			b.Bound(types.NamespacedName{Namespace: "default", Name: name}, "uid-"+uidOf(name), ok)
		}
		tell("p1", true)
		tell("p1", true) // Its second container.
		same(t, "success", c.take(), "0s pod p1 "+phaseKey+"=success")
		tell("p1", false)
		same(t, "success stays", c.take())
		tell("p2", false)
		same(t, "failed", c.take(), "0s pod p2 "+phaseKey+"=failed")
		tell("p2", true)
		same(t, "it started after all", c.take(), "0s pod p2 "+phaseKey+"=success")
		tell("plain", true)
		same(t, "HAMi did not bind it", c.take())

		c.set(func() { c.pods["default/p4"] = asking("p4", "", sgpu) })
		tell("p4", true)
		same(t, "the watch is behind", c.take(), "0s get pod p4", "0s pod p4 "+phaseKey+"=success")

		c.put("p3", asking("p3", "n1", sgpu))
		c.set(func() { c.fail = errors.New("no API server") })
		tell("p3", true)
		<-time.After(time.Minute)
		same(t, "twice", c.take(), "0s pod p3 "+phaseKey+"=success", "1s pod p3 "+phaseKey+"=success")
	})
}
