//go:build e2e && linux

package devices

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/allocation"
	account "github.com/heddle-dev/heddle/deviceplugin/report"
)

const (
	// soakChurn is how long pods come and go in a step, at least.
	soakChurn = 5 * time.Second
	// quietEvery is after how many steps everything is let come to rest, which takes up to half a minute.
	quietEvery = 5
	// stuckAfter is how long a pod may take to start, while the kubelet tries again after 10 s and 20 s.
	stuckAfter = 2 * time.Minute
	// againFor is how long plugin and kubelet are killed again and again.
	againFor = 30 * time.Second
	// defaultSeed is any.
	defaultSeed = 10912843
	// churners make a pod each at a time.
	churners = 16
	// moreThanAtRest is what a daemon may have more of than at rest, for requests under way.
	moreGoroutines, moreDescriptors = 60, 40
)

// soakPlan is which faults a soak has: the same for the same seed.
type soakPlan struct {
	seed  uint64
	steps int
	// only, if not 0, is the one step that is done, again and again.
	only int
}

// planned reads HEDDLE_SOAK, HEDDLE_SOAK_SEED and HEDDLE_SOAK_STEP.
func planned(t *testing.T) soakPlan {
	t.Helper()
	p := soakPlan{seed: defaultSeed}
	var err error
	if p.steps, err = strconv.Atoi(os.Getenv("HEDDLE_SOAK")); err != nil || p.steps < 1 {
		t.Fatalf("HEDDLE_SOAK: invalid number of steps %q", os.Getenv("HEDDLE_SOAK"))
	}
	if text := os.Getenv("HEDDLE_SOAK_SEED"); text != "" {
		if p.seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("HEDDLE_SOAK_SEED: %v", err)
		}
	}
	if text := os.Getenv("HEDDLE_SOAK_STEP"); text != "" {
		if p.only, err = strconv.Atoi(text); err != nil || p.only < 1 {
			t.Fatalf("HEDDLE_SOAK_STEP: invalid step %q", text)
		}
	}
	return p
}

// fault is that of a step, which are counted from 1, and its randomness.
func (p soakPlan) fault(step int) (soakFault, *rand.Rand) {
	all := soakFaults()
	round, i := (step-1)/len(all), (step-1)%len(all)
	order := rand.New(rand.NewPCG(p.seed, uint64(round))).Perm(len(all))
	return all[order[i]], rand.New(rand.NewPCG(p.seed, 1e6+uint64(step)))
}

// TestSoak: one random fault after another of everything that a node has, while pods
// come and go by two schedulers. After each, no GPU is over-committed, containers
// have what the kubelet, the checkpoint entries and the annotations name, those that
// run have noticed nothing, the Node's labels and taints are as before, and the
// daemons are ready and have not grown.
func TestSoak(t *testing.T) {
	if os.Getenv("HEDDLE_SOAK") == "" {
		t.Skip("HEDDLE_SOAK is not set: make soak sets it")
	}
	plan := planned(t)
	t.Logf("seed %d, %d steps", plan.seed, plan.steps)
	s := newSoak(t)
	s.begin(t)
	step := max(1, plan.only)
	for steps := range plan.steps {
		fault, random := plan.fault(step)
		if !t.Run(fmt.Sprintf("%d %s", step, fault.name), func(t *testing.T) { s.step(t, fault, random, fault.counted || steps%quietEvery == quietEvery-1) }) {
			t.Fatalf("step %d of seed %d failed: %s. To have that step alone again: make soak SEED=%d STEP=%d",
				step, plan.seed, fault.name, plan.seed, step)
		}
		if plan.only == 0 {
			step++
		}
	}
	t.Logf("%d steps; %d pods, %d containers with shares looked at; %d requests of daemons, %d of them met a fault",
		plan.steps, s.pods.Load(), len(s.looked), s.gateway.requests.Load(), s.gateway.faults.Load())
	if len(s.looked) <= len(s.running) {
		t.Error("no pod has run but those that stay")
	}
	for _, d := range s.daemons {
		for _, word := range []string{"panic:", "fatal error:"} {
			if lines := d.log.grep(word); len(lines) > 0 {
				t.Errorf("%s: %q", d.name, lines)
			}
		}
	}
	s.waitAllDecided(t)
	s.count(t)
	s.gone(t)
}

// step does one fault while pods come and go, and looks at everything. With quiet it waits
// until no pod is under way, when all counts must be equal.
func (s *soak) step(t *testing.T, fault soakFault, random *rand.Rand, quiet bool) {
	begin, mark := time.Now(), s.plugin.log.mark()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s.sweep(t)
	s.problem.Store(nil)
	var all sync.WaitGroup
	seed := random.Uint64()
	for n := range churners {
		all.Go(func() { s.churn(ctx, rand.New(rand.NewPCG(seed, uint64(n+1))), n) })
	}
	pause(t, upTo(random, time.Second))
	fault.do(s, t, random)
	pause(t, time.Until(begin.Add(soakChurn)))
	cancel()
	all.Wait()
	s.kubeletServes(t)
	s.serving(t)
	s.lands(t)
	eventually(t, func() string { return s.stuck(t) })
	s.invariants(t)
	if quiet {
		s.waitAllDecided(t)
		s.count(t)
		eventually(t, func() string { return s.claimsLeft(t) })
	}
	if err := s.problem.Load(); err != nil && fault.except != noAnswers {
		t.Errorf("the API server, which nothing was done to: %v", *err)
	}
	for line := range strings.Lines(s.plugin.log.since(mark)) {
		if strings.Contains(line, "shares differ from the checkpoint") && fault.except != drift {
			t.Error(line)
		}
	}
	t.Logf("%.1f s; %d pods so far, %d containers with shares looked at", time.Since(begin).Seconds(), s.pods.Load(), len(s.looked))
}

// kubeletServes waits until the kubelet takes device plugins. One that starts first
// asks containerd for every cgroup that it finds, and for 3 s for each that has no container.
func (s *soak) kubeletServes(t *testing.T) {
	t.Helper()
	socket := s.NodeDir("/var/lib/kubelet/device-plugins/kubelet.sock")
	eventually(t, func() string {
		c, err := net.Dial("unix", socket)
		if err != nil {
			return err.Error()
		}
		_ = c.Close()
		return ""
	})
}

// lands has both schedulers place a pod, which the kubelet admits and the plugin gives an HCA.
func (s *soak) lands(t *testing.T) {
	t.Helper()
	var pods []*corev1.Pod
	for _, scheduler := range []string{corev1.DefaultSchedulerName, schedulerDaemon} {
		p := tolerating(s.pod(fmt.Sprintf("churn-lands-%d-%s", s.pods.Add(1), scheduler), box{hcas: 1}))
		p.Spec.SchedulerName = scheduler
		pods = append(pods, p)
		if _, err := s.client.CoreV1().Pods(namespace).Create(t.Context(), p, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range pods {
		eventually(t, func() string {
			s.revive(t)
			now, err := s.client.CoreV1().Pods(namespace).Get(t.Context(), p.Name, metav1.GetOptions{})
			if err != nil {
				return err.Error()
			}
			if !ready(now) {
				return p.Name + " does not run: " + inShort(now)
			}
			return ""
		})
	}
}

// stuck is a pod that should have started or gone long ago; empty if there is none.
func (s *soak) stuck(t *testing.T) string {
	t.Helper()
	pods := s.list(t)
	for i := range pods {
		p := &pods[i]
		since := p.CreationTimestamp.Time
		if p.DeletionTimestamp != nil {
			since = p.DeletionTimestamp.Time
		} else if decided(p) {
			continue
		}
		if time.Since(since) > stuckAfter {
			return fmt.Sprintf("%s is stuck: %s", p.Name, inShort(p))
		}
	}
	return ""
}

// shared compares the shares of containers that run, and counts what GPUs have given out, also to
// pods under way; empty if the plugin's report and the annotations agree, and every GPU has it.
func (s *soak) shared(t *testing.T) string {
	t.Helper()
	pods := s.list(t)
	given := map[string]map[string]allocation.Sharing{}
	report := s.account(t)
	for _, b := range report.Bindings {
		if given[b.Pod] == nil {
			given[b.Pod] = map[string]allocation.Sharing{}
		}
		if len(b.Shares) > 0 {
			given[b.Pod][b.Container] = allocation.Sharing{Shares: b.Shares}
		}
	}
	sum, published := tally{}, tally{}
	for i := range pods {
		p := &pods[i]
		sum.plus(tallyPod(p, &allocation.Bound{Containers: given[p.Name]}))
		if !ready(p) || p.DeletionTimestamp != nil || !asksShares(p) {
			continue
		}
		bound, err := boundTo(p)
		if err != nil {
			return fmt.Sprintf("%s, UID %s, runs: %v; the plugin reports %+v", p.Name, p.UID, err, bindingsOf(report, p.Name))
		}
		for _, c := range p.Spec.Containers {
			if diff := cmp.Diff(byGPU(given[p.Name][c.Name].Shares), byGPU(bound.Containers[c.Name].Shares)); diff != "" {
				return fmt.Sprintf("%s/%s (-plugin's report +annotation):\n%s", p.Name, c.Name, diff)
			}
		}
	}
	for _, g := range s.published(t).GPUs {
		published[g.UUID] = g.Taken
	}
	return strings.Join(append(s.overcommitted(t, sum), s.overcommitted(t, published)...), "\n")
}

// bindingsOf returns what the plugin reports of a pod.
func bindingsOf(r *account.Report, pod string) (all []account.Binding) {
	for _, b := range r.Bindings {
		if b.Pod == pod {
			all = append(all, b)
		}
	}
	return all
}

// invariants hold after every step.
func (s *soak) invariants(t *testing.T) {
	t.Helper()
	eventually(t, func() string { return s.shared(t) })
	s.oneHolder(t)
	after := s.truthful(t)
	for k := range after {
		s.looked[k] = true
	}
	for k, was := range s.running {
		if diff := cmp.Diff(was, after[k]); diff != "" {
			t.Errorf("%s noticed (-before +after):\n%s", k, diff)
		}
	}
	if diff := cmp.Diff(s.records, s.shareRecords(t)); diff != "" {
		t.Errorf("checkpoint entries of pods that ran all the time (-before +after):\n%s", diff)
	}
	eventually(t, func() string { return s.asKubelet(t) })
	eventually(t, func() string {
		n := s.node(t)
		return cmp.Diff(s.labels, n.Labels) + cmp.Diff(s.taints, n.Spec.Taints, byKey())
	})
	eventually(t, func() string { return s.grown(t) })
}

// asKubelet compares checkpoint entries with what the kubelet reports; empty if
// every container that runs has the same device IDs in both.
func (s *soak) asKubelet(t *testing.T) string {
	t.Helper()
	held, entries := s.held(t), map[string]map[string][]string{}
	for k, records := range s.bindings(t) {
		entries[k] = map[string][]string{}
		for i := range records {
			entries[k][records[i].Resource] = append(entries[k][records[i].Resource], records[i].IDs...)
		}
	}
	var wrong []string
	for name, p := range s.consumers(t) {
		for _, c := range p.Spec.Containers {
			k := key(name, c.Name)
			for resource, ids := range entries[k] {
				slices.Sort(ids)
				if diff := cmp.Diff(held[k][resource], ids); diff != "" {
					wrong = append(wrong, fmt.Sprintf("%s, %s (-PodResources +checkpoint entry):\n%s", k, resource, diff))
				}
			}
			if len(entries[k]) == 0 {
				wrong = append(wrong, k+" has no checkpoint entry")
			}
		}
	}
	return strings.Join(wrong, "\n")
}

// byKey ignores the order of taints.
func byKey() cmp.Option {
	return cmp.Transformer("byKey", func(taints []corev1.Taint) map[string]corev1.Taint {
		all := map[string]corev1.Taint{}
		for i := range taints {
			all[taints[i].Key+string(taints[i].Effect)] = taints[i]
		}
		return all
	})
}

// grown is which daemon has more goroutines or descriptors than it should.
func (s *soak) grown(t *testing.T) string {
	t.Helper()
	s.revive(t)
	for _, d := range s.daemons {
		now, err := d.use(t.Context(), s.net)
		if err != nil {
			return fmt.Sprintf("%s: %v", d.name, err)
		}
		was := s.used[d.name]
		if now.goroutines > was.goroutines+moreGoroutines || now.descriptors > was.descriptors+moreDescriptors {
			return fmt.Sprintf("%s has %+v, and had %+v at rest", d.name, now, was)
		}
	}
	return ""
}
