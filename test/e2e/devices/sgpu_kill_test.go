//go:build e2e && linux

package devices

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// killEvery is the usual chaos.every.
const killEvery = 5 * time.Second

// chaos is churn and kills.
type chaos struct {
	rig *rig
	// every is how long at most nothing is killed.
	every time.Duration
	// churners make one pod after the other, and wait for each no longer than patience.
	churners int
	patience time.Duration
	// scheduler, if set, gets half of the pods.
	scheduler                            string
	plugins, kubelets, pods, ran, failed atomic.Int64
	// problem is the last error of the API server, if there was one.
	problem atomic.Pointer[error]
}

// start has churners make pods until ctx ends, which wait waits for.
func (c *chaos) start(ctx context.Context, seed uint64) (wait func()) {
	var all sync.WaitGroup
	for i := range c.churners {
		all.Go(func() { c.churn(ctx, rand.New(rand.NewPCG(seed, uint64(i+1))), i) })
	}
	return all.Wait
}

// churn makes one pod after the other, with random shares and life, and takes
// each away whatever it is up to.
func (c *chaos) churn(ctx context.Context, random *rand.Rand, n int) {
	api := c.rig.client.CoreV1().Pods(namespace)
	for i := 0; ctx.Err() == nil; i++ {
		name := fmt.Sprintf("churn-%d-%d-%d", random.Uint32N(1e6), n, i)
		p := c.rig.pod(name, box{more: shares(1+random.IntN(2), 5+random.IntN(30), 1+random.IntN(12))})
		if random.IntN(4) == 0 {
			p = c.rig.pod(name, box{more: share(5+random.IntN(30), 2)}, box{name: "before", more: share(10, 2), args: []string{"once"}})
		}
		tolerating(p)
		if random.IntN(2) == 0 {
			p.Spec.SchedulerName = c.scheduler
		}
		if _, err := api.Create(ctx, p, metav1.CreateOptions{}); err != nil {
			if !apierrors.IsAlreadyExists(err) { // A step of a soak again, with the same names.
				c.note(ctx, err)
			}
			sleep(ctx, 200*time.Millisecond) // The API server may be away.
			continue
		}
		c.pods.Add(1)
		patience := time.Duration(random.IntN(3000)) * time.Millisecond
		if random.IntN(3) > 0 {
			patience = c.patience // Else it goes before it has run.
		}
		if ran, failed := c.rig.await(ctx, name, patience); failed {
			c.failed.Add(1)
		} else if ran {
			c.ran.Add(1)
			sleep(ctx, time.Duration(random.IntN(2500))*time.Millisecond)
		}
		if ctx.Err() != nil {
			return
		}
		for ctx.Err() == nil {
			err := api.Delete(ctx, name, metav1.DeleteOptions{})
			if err == nil {
				break
			}
			c.note(ctx, err)
			if apierrors.IsNotFound(err) { // The answer to an earlier try was lost.
				break
			}
			sleep(ctx, 200*time.Millisecond)
		}
	}
}

// note keeps an answer of the API server that is an error; the client's rate limiter gives up before
// the deadline that it would miss.
func (c *chaos) note(ctx context.Context, err error) {
	end, ok := ctx.Deadline()
	if ctx.Err() == nil && (!ok || time.Until(end) > 5*time.Second) {
		c.problem.Store(&err)
	}
}

// tolerating has a pod bear the taints of GPU nodes.
func tolerating(p *corev1.Pod) *corev1.Pod {
	p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	return p
}

// await waits until a pod is ready or has failed, but no longer than within.
func (r *rig) await(ctx context.Context, pod string, within time.Duration) (ran, failed bool) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for ctx.Err() == nil {
		now, err := r.client.CoreV1().Pods(namespace).Get(ctx, pod, metav1.GetOptions{})
		if err == nil && (ready(now) || now.Status.Phase == corev1.PodFailed) {
			return ready(now), !ready(now)
		}
		sleep(ctx, 200*time.Millisecond)
	}
	return false, false
}

// sleep waits, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// kill kills one or both, leaves them dead for a moment, and starts them again, until done. It
// does not wait until they serve.
func (c *chaos) kill(t *testing.T, random *rand.Rand, done <-chan struct{}) {
	t.Helper()
	r := c.rig
	within := func(most time.Duration) <-chan time.Time {
		return time.After(time.Duration(random.Int64N(int64(most))))
	}
	for {
		select {
		case <-within(c.every):
		case <-done:
			return
		}
		victim := random.IntN(4) // 0 and 1 the plugin, 2 the kubelet, 3 both
		if victim != 2 && r.plugin.running() {
			r.plugin.kill(t)
			c.plugins.Add(1)
		}
		if victim >= 2 {
			r.killComponent(t, "kubelet")
			c.kubelets.Add(1)
		}
		<-within(1500 * time.Millisecond)
		first, second := r.revivePlugin, r.reviveKubelet
		if random.IntN(2) == 0 {
			first, second = second, first
		}
		first(t)
		second(t)
	}
}

// componentPID is 0 for what does not run.
func (r *rig) componentPID(t *testing.T, component string) int {
	t.Helper()
	for _, c := range r.Status(r.ctx(t)).Components {
		if c.Name == component {
			return c.PID
		}
	}
	t.Fatalf("the cluster has no %s", component)
	return 0
}

// killComponent is kill -9 of one of Kubernetes' own.
func (r *rig) killComponent(t *testing.T, component string) {
	t.Helper()
	pid := r.componentPID(t, component)
	if pid == 0 {
		t.Fatalf("%s does not run", component)
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() string {
		if r.componentPID(t, component) != 0 {
			return component + " lives"
		}
		return ""
	})
}

func (r *rig) reviveKubelet(t *testing.T) {
	t.Helper()
	if r.componentPID(t, "kubelet") != 0 {
		return
	}
	if err := r.StartKubelet(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func (r *rig) revivePlugin(t *testing.T) {
	t.Helper()
	if r.plugin.running() {
		return
	}
	if err := r.plugin.start(t.Context()); err != nil {
		t.Fatal(err)
	}
}
