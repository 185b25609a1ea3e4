package hami_test

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/sharing/hami"
	"github.com/heddle-dev/heddle/test/hamirecord"
)

// TestRecordedWrites takes every recorded pod through HAMi's writes, in their order: the
// lock stays until the Binding and goes with it, and the phase follows.
func TestRecordedWrites(t *testing.T) {
	writes := func(calls []string) (all []string) {
		for _, call := range calls {
			if _, what, _ := strings.Cut(call, " "); !strings.HasPrefix(what, "get ") {
				all = append(all, what)
			}
		}
		return all
	}
	for _, version := range hamirecord.Versions() {
		serving(t, func(c *cluster, b *hami.Plugin, _ func()) {
			c.take()
			for _, p := range hamirecord.Load(t, version).Pods {
				what := "HAMi " + version + ", " + p.Name
				pod := p.Admitted()
				c.put(p.Name, pod.DeepCopy())
				decision, _ := p.Decision()
				maps.Copy(pod.Annotations, decision)
				c.put(p.Name, pod.DeepCopy())
				var unlocked []string
				if len(decision) > 0 { // 2.6 does not lock for a pod of which only init containers ask.
					c.locked(p.Lock(p.Name))
					unlocked = []string{"node -" + lockKey}
				}
				maps.Copy(pod.Annotations, p.Binding())
				c.put(p.Name, pod)
				<-time.After(5 * time.Second) // The lock's pod is read meanwhile.
				same(t, what+" before the Binding", writes(c.take()))
				c.put(p.Name, p.Bound())
				same(t, what+" bound", writes(c.take()), unlocked...)
				c.prepared(b, pod.UID, true)
				same(t, what+" prepared", writes(c.take()), "pod "+p.Name+" "+phaseKey+"=success")
			}
		})
	}
}

func TestTheLockOfAPodThatIsNotComing(t *testing.T) {
	for _, tt := range []struct {
		name string
		pod  *corev1.Pod
		want []string
	}{
		{name: "gone", want: []string{"1s get pod p1", "1s node -" + lockKey}},
		{name: "bound elsewhere", pod: asking("p1", "n2", sgpu), want: []string{"1s get pod p1", "1s node -" + lockKey}},
		{name: "not bound", pod: asking("p1", "", sgpu), want: []string{"1s get pod p1", "6s get pod p1"}},
		{name: "another plugin's", pod: asking("p1", "node1", "nvidia.com/gpumem")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			serving(t, func(c *cluster, _ *hami.Plugin, _ func()) {
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
		serving(t, func(c *cluster, _ *hami.Plugin, _ func()) {
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
	serving(t, func(c *cluster, _ *hami.Plugin, _ func()) {
		c.take()
		c.put("p1", asking("p1", "node1", sgpu))
		c.locked("2026-11-21T01:20:00Z,default,p1")
		<-time.After(500 * time.Millisecond)
		same(t, "at once", c.take())
		c.put("p1", asking("p1", "", sgpu))
		<-time.After(time.Second)
		same(t, "later", c.take(), "1s get pod p1")
		next := asking("p1", "node1", sgpu)
		next.Annotations[wellknown.HAMiBindTime] = "1795224000"
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
		{name: "another writer of the Node", after: lockOf("p1"), want: []string{"0s node -" + lockKey, "0s get node", "0s node -" + lockKey}},
		{name: "the lock is free", want: []string{"0s node -" + lockKey, "0s get node"}},
		{name: "the lock is another pod's", after: lockOf("p2"), want: []string{"0s node -" + lockKey, "0s get node"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			serving(t, func(c *cluster, _ *hami.Plugin, _ func()) {
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
				c.put("p1", asking("p1", "node1", sgpu))
				got := c.take()
				same(t, "calls", got[:min(len(got), len(tt.want))], tt.want...)
				if has := c.node.Annotations[lockKey]; tt.name != "another writer of the Node" && has != tt.after {
					t.Errorf("lock %q, want %q", has, tt.after)
				}
			})
		})
	}
}

func TestWhatFailsIsTriedAgain(t *testing.T) {
	serving(t, func(c *cluster, _ *hami.Plugin, _ func()) {
		c.take()
		c.put("p1", asking("p1", "node1", sgpu))
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

func TestGPUsArePublished(t *testing.T) {
	serving(t, func(c *cluster, b *hami.Plugin, stop func()) {
		same(t, "open from the start", c.take(), "0s node "+gpusKey+"=1/1")
		set := func(do func(*hami.State)) {
			c.set(func() { do(&c.state) })
			b.Set(c.now())
		}
		<-time.After(time.Hour)
		same(t, "no change", c.take())

		set(func(s *hami.State) { s.Open = false })
		same(t, "the kubelet restarts", c.take(), "1h0m0s node "+gpusKey+"=0/1")
		set(func(s *hami.State) { s.Open = true })
		same(t, "it is back", c.take(), "1h0m0s node "+gpusKey+"=1/1")

		consumer := gpu(gpuA, 0, func(c *hami.GPU) { c.Consumers, c.VCore, c.UsedMiB, c.Policy = 1, 30, 2048, "fixed-share" })
		set(func(s *hami.State) { s.GPUs = []hami.GPU{consumer} })
		same(t, "the first consumer brings a policy", c.take(), "1h0m0s node "+gpusKey+"=1/1")
		second := consumer
		second.Consumers, second.VCore = 2, 60
		set(func(s *hami.State) { s.GPUs = []hami.GPU{second} })
		<-time.After(10 * time.Second)
		same(t, "another consumer changes nothing for HAMi", c.take())
		set(func(s *hami.State) { s.GPUs = []hami.GPU{gpu(gpuA, 0)} })
		same(t, "the last consumer takes the policy away", c.take(), "1h0m10s node "+gpusKey+"=1/1")

		c.set(func() { c.write(func(n *corev1.Node) { n.Annotations = map[string]string{} }) })
		same(t, "a user removed it", c.take(), "1h0m10s node "+gpusKey+"=1/1")
		stop()
		same(t, "the process ends", c.take(), "1h0m10s node "+gpusKey+"=0/1")
	})
}

func TestAnnotationIsRemoved(t *testing.T) {
	for _, tt := range []struct {
		name string
		has  string
		do   func(*hami.State)
		want []string
	}{
		{name: "HAMi is off", has: hami.Annotation([]hami.GPU{gpu(gpuA, 0)}, false), do: func(s *hami.State) { s.Enabled = false }, want: []string{"0s node -" + gpusKey}},
		{name: "no GPU is shared", has: hami.Annotation([]hami.GPU{gpu(gpuA, 0)}, true), do: func(s *hami.State) { s.GPUs = nil }, want: []string{"0s node -" + gpusKey}},
		{name: "another maker's GPUs", has: hami.Annotation([]hami.GPU{gpu("METAX-1", 0)}, true), do: func(s *hami.State) { s.Enabled = false }},
		{name: "nonsense", has: "x", do: func(s *hami.State) { s.Enabled = false }},
		{name: "no annotation", do: func(s *hami.State) { s.Enabled = false }},
		{name: "not open yet", do: func(s *hami.State) { s.Open = false }},
		{name: "not open after a crash", has: hami.Annotation([]hami.GPU{gpu(gpuA, 0)}, true), do: func(s *hami.State) { s.Open = false }, want: []string{"0s node " + gpusKey + "=0/1"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster()
				if tt.has != "" {
					c.node.Annotations[gpusKey] = tt.has
				}
				tt.do(&c.state)
				ctx, cancel := context.WithCancel(t.Context())
				b := hami.New(hami.Options{
					Node: "node1", Watched: c, API: c, Log: slog.New(slog.DiscardHandler),
				})
				b.Set(c.now())
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
	serving(t, func(c *cluster, b *hami.Plugin, _ func()) {
		c.set(func() { c.state = hami.State{Resource: sgpu, Local: []string{gpuA}} })
		b.Set(c.now())
		c.take()
		c.put("p1", asking("p1", "node1", sgpu))
		c.locked(lockOf("p1"))
		<-time.After(time.Minute)
		same(t, "calls", c.take())
	})
}

func TestBindPhaseIsWritten(t *testing.T) {
	serving(t, func(c *cluster, b *hami.Plugin, _ func()) {
		c.take()
		plain := asking("plain", "node1", sgpu)
		plain.Annotations = nil
		for name, pod := range map[string]*corev1.Pod{"p1": asking("p1", "node1", sgpu), "p2": asking("p2", "node1", sgpu), "plain": plain} {
			c.put(name, pod)
		}
		report := func(name string, ok bool) {
			c.prepared(b, "uid-"+uidOf(name), ok)
		}
		report("p1", true)
		report("p1", true) // Its second container.
		same(t, "success", c.take(), "0s pod p1 "+phaseKey+"=success")
		report("p1", false)
		same(t, "success stays", c.take())
		report("p2", false)
		same(t, "failed", c.take(), "0s pod p2 "+phaseKey+"=failed")
		report("p2", true)
		same(t, "it started after all", c.take(), "0s pod p2 "+phaseKey+"=success")
		report("plain", true)
		same(t, "HAMi did not bind it", c.take())

		c.put("p3", asking("p3", "node1", sgpu))
		c.take()
		c.set(func() { c.fail = errors.New("no API server") })
		report("p3", true)
		<-time.After(2 * time.Second)
		same(t, "until it succeeds", c.take(), "0s pod p3 "+phaseKey+"=success", "1s pod p3 "+phaseKey+"=success")
	})
}
