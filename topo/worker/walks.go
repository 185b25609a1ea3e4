package worker

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/topo/worker/cable"
)

// Walker finds the uplinks of a leaf through one port: topo/worker/ib.
type Walker interface {
	Walk(ctx context.Context, p cable.Port, leaf string) ([]v1alpha1.Uplink, error)
}

const (
	// walkEvery is how often a leaf is walked: spines are seldom moved.
	walkEvery = 5 * time.Minute
	// walkTime bounds one walk.
	walkTime   = 30 * time.Second
	maxUplinks = 2048
)

// walks are the uplinks of the leaves that topo-master asks for. One walk runs
// at a time, beside the passes.
type walks struct {
	walker Walker
	// wanted are the leaves to walk, found what is known of them.
	wanted []string
	found  map[string]*walked
	// done has the outcome of the walk that runs.
	done    chan outcome
	running bool
}

type walked struct {
	uplinks []v1alpha1.Uplink
	// fault is why the last walk failed; the uplinks are older then.
	fault string
	next  time.Time
}

type outcome struct {
	leaf    string
	uplinks []v1alpha1.Uplink
	err     error
}

func newWalks(w Walker) walks {
	return walks{walker: w, found: map[string]*walked{}, done: make(chan outcome, 1)}
}

// want takes the list of leaves and tells whether it is another.
func (w *walks) want(leaves []string) (changed bool) {
	if slices.Equal(leaves, w.wanted) {
		return false
	}
	w.wanted = slices.Clone(leaves)
	maps.DeleteFunc(w.found, func(leaf string, _ *walked) bool { return !slices.Contains(leaves, leaf) })
	return true
}

// remember takes over what an earlier worker published.
func (w *walks) remember(nt *v1alpha1.NodeTopology) {
	w.want(nt.Status.Walk)
	for _, u := range nt.Spec.Uplinks {
		if !slices.Contains(w.wanted, u.Leaf) {
			continue
		}
		if w.found[u.Leaf] == nil {
			w.found[u.Leaf] = &walked{}
		}
		w.found[u.Leaf].uplinks = append(w.found[u.Leaf].uplinks, u)
	}
}

// start begins the walk that is due, if any, through a port whose cable is
// known to end at the leaf.
func (w *walks) start(ctx context.Context, ports []cable.Port, rails []v1alpha1.Rail) {
	if w.walker == nil || w.running {
		return
	}
	now := time.Now()
	for _, leaf := range w.wanted {
		known := w.found[leaf]
		if known == nil {
			known = &walked{}
			w.found[leaf] = known
		}
		if now.Before(known.next) {
			continue
		}
		p, ok := through(leaf, ports, rails)
		if !ok {
			known.fault = "no active port of this node leads to it"
			continue
		}
		known.next = now.Add(walkEvery)
		w.running = true
		go func() {
			ctx, cancel := context.WithTimeout(ctx, walkTime)
			defer cancel()
			uplinks, err := w.walker.Walk(ctx, p, leaf)
			w.done <- outcome{leaf, uplinks, err}
		}()
		return
	}
}

// through is a port whose cable ends at the leaf, by the switch's own word.
func through(leaf string, ports []cable.Port, rails []v1alpha1.Rail) (cable.Port, bool) {
	for i := range rails {
		r := &rails[i]
		if r.Switch == nil || r.Switch.ID != leaf || r.Source != v1alpha1.SourceIB || r.LinkState == v1alpha1.LinkDown {
			continue
		}
		for _, p := range ports {
			if p.ID == r.ID && int32(p.Port) == r.Port { //nolint:gosec // Ports are small.
				return p, true
			}
		}
	}
	return cable.Port{}, false
}

// collect takes an outcome if there is one.
func (w *walks) collect() {
	select {
	case o := <-w.done:
		w.keep(o)
	default:
	}
}

func (w *walks) keep(o outcome) {
	w.running = false
	known := w.found[o.leaf]
	switch {
	case known == nil: // No longer wanted.
	case o.err != nil:
		known.fault = o.err.Error()
	default:
		known.fault, known.uplinks = "", o.uplinks
	}
}

// uplinks is what is known, by leaf and port, and what is not.
func (w *walks) uplinks() (all []v1alpha1.Uplink, skipped []v1alpha1.Skipped) {
	for _, leaf := range slices.Sorted(maps.Keys(w.found)) {
		known := w.found[leaf]
		if known.fault != "" {
			skipped = append(skipped, v1alpha1.Skipped{
				Name: cable.Text("uplinks of "+leaf, cable.MaxName), Reason: cable.Text(known.fault, cable.MaxReason),
			})
		}
		all = append(all, known.uplinks...)
	}
	if len(all) > maxUplinks {
		all = all[:maxUplinks]
	}
	return all, skipped
}
