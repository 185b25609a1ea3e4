package binder

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"path/filepath"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/heddle-dev/heddle/api/config"
)

const (
	// bindTimeout is less than the 30 s that the kubelet gives
	// PreStartContainer, so that the kubelet's Event has our reason.
	bindTimeout = 25 * time.Second
	// specTimeout is how long a start waits to learn what the pod's owner
	// wrote. Without that the container starts, without hints.
	specTimeout = 3 * time.Second
)

// account is what the kubelet says at one moment.
type account struct {
	pods     []*podresources.PodResources
	holdings []holding
	// counted are those of percents and GiB: hundreds for a container, and no
	// devices.
	counted []holding
	// listed are the pods that PodResources lists, by namespace and name.
	listed map[[2]string]bool
	// unknown are the containers that have shares, of which nobody knows yet.
	unknown []owner
	// checkpointErr is why the holdings come from PodResources alone.
	checkpointErr error
	// at is the number of the last decision before the account began.
	at uint64
}

// look asks the kubelet. The checkpoint is read last: it has what the answer
// of PodResources has.
func (b *Binder) look(ctx context.Context) (*account, error) {
	b.mu.Lock()
	a := &account{at: b.decisions}
	b.mu.Unlock()
	pods, err := b.lister.list(ctx)
	b.noteStart() // After the list: it may have waited for a kubelet that starts.
	b.note(faultPodResources, err)
	if err != nil {
		return nil, err
	}
	entries, err := b.checkpoint.read()
	b.note(faultCheckpoint, err)
	c := b.options.Config()
	a.pods, a.checkpointErr, a.listed = pods, err, make(map[[2]string]bool, len(pods))
	for _, p := range pods {
		a.listed[[2]string{p.GetNamespace(), p.GetName()}] = true
	}
	for _, h := range holdings(pods, entries) {
		if h.resource == c.Resources.VCore || h.resource == c.Resources.VMemory {
			a.counted = append(a.counted, h)
		} else {
			a.holdings = append(a.holdings, h)
		}
	}
	b.adopt(a)
	b.testify(a)
	return a, nil
}

// owners are the holdings of exactly these IDs: one, or an ordinary init
// container and the container that takes its devices over.
func (a *account) owners(resource string, ids []string) []holding {
	return slices.DeleteFunc(slices.Clone(a.holdings), func(h holding) bool {
		return h.resource != resource || !slices.Equal(h.ids, ids)
	})
}

// of are all holdings of one container, by resource.
func (a *account) of(o owner) []holding {
	held := slices.DeleteFunc(slices.Clone(a.holdings), func(h holding) bool { return h.owner != o })
	slices.SortFunc(held, func(p, q holding) int { return cmp.Compare(p.resource, q.resource) })
	return held
}

// Bind decides what stands behind the CDI names of every container that holds
// exactly these IDs, for all its resources together, and puts the specs into
// the CDI directory. For a container that is bound already it changes nothing
// but what its HCAs' state or its pod's environment changed. It is what
// PreStartContainer does; an error keeps the container from starting, and the
// kubelet tries again.
func (b *Binder) Bind(ctx context.Context, resource string, ids []string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, bindTimeout,
		fmt.Errorf("no binding for a container with %s in %v", resource, bindTimeout))
	defer cancel()
	if _, _, err := kindOf(b.options.Config(), resource); err != nil && !b.recorded(resource) {
		return err
	}
	ids = sorted(ids)
	now, err := b.look(ctx)
	if err != nil {
		return fmt.Errorf("whose are %d devices of %s: %w", len(ids), resource, err)
	}
	owners := now.owners(resource, ids)
	if len(owners) == 0 {
		err := fmt.Errorf("no container holds exactly the %d given devices of %s", len(ids), resource)
		return errors.Join(err, now.checkpointErr)
	}
	b.tellLost(ctx, now)
	var errs []error
	for i := range owners {
		if err := b.start(ctx, owners[i].owner, now); err != nil {
			errs = append(errs, fmt.Errorf("bind devices of container %s of %s: %w",
				owners[i].Container, owners[i].Pod, err))
		}
	}
	return errors.Join(errs...)
}

// recorded tells whether names were given out for a resource, which may have
// left the configuration since.
func (b *Binder) recorded(resource string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range b.records {
		if r.Resource == resource {
			return true
		}
	}
	return false
}

// start binds one container.
func (b *Binder) start(ctx context.Context, o owner, now *account) error {
	pod := b.podOf(ctx, o.Pod)
	named := o
	if o.Name == "" && pod != nil {
		named.Namespace, named.Name = pod.Namespace, pod.Name
	}
	defer b.starting.lock(o)()
	held := now.of(o)
	if err := b.refuse(held, now); err != nil {
		return err
	}
	if err := context.Cause(ctx); err != nil {
		return err // Who asked may be a kubelet that is gone, and who answered the next one.
	}
	fresh := false
	if slices.ContainsFunc(held, func(h holding) bool { return b.shares(&h) }) {
		var err error
		if fresh, err = b.reserve(named, pod, now); err != nil {
			return err
		}
	}
	p, err := b.decide(named, held, now)
	if err == nil {
		err = b.limit(ctx, p)
	}
	if err != nil {
		return err
	}
	p.changed = p.changed || fresh
	for _, w := range p.warnings {
		b.options.Log.Warn("binding is not what was asked for", "pod", named.String(), "container", named.Container,
			"reason", w.reason, "message", w.message)
		if b.options.Events != nil {
			b.options.Events.Warn(named.Pod, w.reason, w.message)
		}
	}
	dress, err := dress(&p.devices, pod, b.options.GPUEnv)
	if err != nil {
		return err
	}
	b.files.RLock()
	defer b.files.RUnlock()
	for _, g := range p.grants {
		if err := b.publish(g, dress); err != nil {
			return err
		}
	}
	if p.changed {
		b.options.Log.Info("bound", "pod", named.String(), "container", named.Container,
			"gpus", len(p.devices.GPUs), "hcas", len(p.devices.HCAs))
		b.signal()
	}
	return nil
}

// podOf asks what the pod's owner wrote; nil if nobody knows in time.
func (b *Binder) podOf(ctx context.Context, p Pod) *corev1.Pod {
	if b.options.PodSpecs == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, specTimeout)
	defer cancel()
	pod, err := b.options.PodSpecs.Pod(ctx, p)
	if err != nil {
		b.options.Log.Warn("pod is not known, its containers get no hints", "pod", p.String(), "err", err)
		return nil
	}
	return pod
}

// publish brings the files of one record up to date: what the container will
// see, then the record, then the spec. A spec in place therefore has all that
// it refers to, and a record behind it.
func (b *Binder) publish(g grant, o *outfit) error {
	spec, err := b.specOf(&g, o)
	if err != nil {
		return err
	}
	err = put(filepath.Join(b.options.StateDir, deviceDir), g.record.Device+jsonEnd, o.devices)
	if err == nil {
		err = b.save(g.record)
	}
	if err != nil {
		err = fmt.Errorf("state of %s: %w", g.record.name(), err)
	}
	b.note(faultState, err)
	if err != nil {
		return err
	}
	if err = put(b.options.CDIDir, specFile(g.record), spec); err != nil {
		err = fmt.Errorf("CDI spec of %s: %w", g.record.name(), err)
	}
	b.note(faultCDI, err)
	return err
}

// stripes are locks by container: two containers rarely share one, and that
// costs them only time.
type stripes [64]sync.Mutex

func (s *stripes) lock(o owner) (unlock func()) {
	h := fnv.New32a()
	for _, word := range []string{o.Namespace, o.Name, o.UID, o.Container} {
		_, _ = io.WriteString(h, word+"\x00")
	}
	m := &s[h.Sum32()%uint32(len(s))]
	m.Lock()
	return m.Unlock
}

// rdmaConfig is the configuration of an RDMA resource; nil if it has gone.
func rdmaConfig(c *config.NodeConfig, resource string) *config.RDMAResource {
	_, r, err := kindOf(c, resource)
	if err != nil {
		return nil
	}
	return r
}
