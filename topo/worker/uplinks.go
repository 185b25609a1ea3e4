package worker

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
)

// UplinkSource discovers the uplinks of a leaf through one port: topo/worker/ib.
type UplinkSource interface {
	Uplinks(ctx context.Context, p Port, leaf string) ([]v1alpha1.Uplink, error)
}

const (
	// uplinksEvery is how often a leaf's uplinks are discovered: spines are
	// seldom moved.
	uplinksEvery = 5 * time.Minute
	// uplinksTime bounds the discovery of one leaf.
	uplinksTime = 30 * time.Second
	maxUplinks  = 2048
)

// uplinks are those of the leaves that status.walk names. One discovery runs at
// a time, beside the passes.
type uplinks struct {
	source UplinkSource
	// wanted are the leaves to ask, found what is known of them.
	wanted []string
	found  map[string]*leafUplinks
	// done has the outcome of the discovery that runs.
	done    chan outcome
	running bool
}

type leafUplinks struct {
	uplinks []v1alpha1.Uplink
	// fault is why the last discovery failed; the uplinks are older then.
	fault string
	next  time.Time
}

type outcome struct {
	leaf    string
	uplinks []v1alpha1.Uplink
	err     error
}

func newUplinks(s UplinkSource) uplinks {
	return uplinks{source: s, found: map[string]*leafUplinks{}, done: make(chan outcome, 1)}
}

// want takes the list of leaves and reports whether it is another.
func (u *uplinks) want(leaves []string) (changed bool) {
	if slices.Equal(leaves, u.wanted) {
		return false
	}
	u.wanted = slices.Clone(leaves)
	maps.DeleteFunc(u.found, func(leaf string, _ *leafUplinks) bool { return !slices.Contains(leaves, leaf) })
	return true
}

// remember takes over what an earlier worker published.
func (u *uplinks) remember(nt *v1alpha1.NodeTopology) {
	u.want(nt.Status.Walk)
	for _, up := range nt.Spec.Uplinks {
		if !slices.Contains(u.wanted, up.Leaf) {
			continue
		}
		if u.found[up.Leaf] == nil {
			u.found[up.Leaf] = &leafUplinks{}
		}
		u.found[up.Leaf].uplinks = append(u.found[up.Leaf].uplinks, up)
	}
}

// start begins the discovery that is due, if any, through a port with a
// cable that is known to end at the leaf.
func (u *uplinks) start(ctx context.Context, ports []Port, rails []v1alpha1.Rail) {
	if u.source == nil || u.running {
		return
	}
	now := time.Now()
	for _, leaf := range u.wanted {
		known := u.found[leaf]
		if known == nil {
			known = &leafUplinks{}
			u.found[leaf] = known
		}
		if now.Before(known.next) {
			continue
		}
		p, ok := through(leaf, ports, rails)
		if !ok {
			known.fault = "no active port of this node leads to it"
			continue
		}
		known.next = now.Add(uplinksEvery)
		u.running = true
		go func() {
			ctx, cancel := context.WithTimeout(ctx, uplinksTime)
			defer cancel()
			uplinks, err := u.source.Uplinks(ctx, p, leaf)
			u.done <- outcome{leaf, uplinks, err}
		}()
		return
	}
}

// through is a port of which the cable ends at the leaf, as the switch itself
// answered.
func through(leaf string, ports []Port, rails []v1alpha1.Rail) (Port, bool) {
	for i := range rails {
		r := &rails[i]
		if r.Switch == nil || r.Switch.ID != leaf || r.Source != v1alpha1.SourceIB || r.LinkState == v1alpha1.LinkDown {
			continue
		}
		for _, p := range ports {
			if p.ID == r.ID && p.Port == r.Port {
				return p, true
			}
		}
	}
	return Port{}, false
}

// collect takes an outcome if there is one.
func (u *uplinks) collect() {
	select {
	case o := <-u.done:
		u.keep(o)
	default:
	}
}

func (u *uplinks) keep(o outcome) {
	u.running = false
	known := u.found[o.leaf]
	switch {
	case known == nil: // No longer wanted.
	case o.err != nil:
		known.fault = o.err.Error()
	default:
		known.fault, known.uplinks = "", o.uplinks
	}
}

// known are the uplinks by leaf and port, and what could not be read.
func (u *uplinks) known() (all []v1alpha1.Uplink, faults []v1alpha1.Skipped) {
	for _, leaf := range slices.Sorted(maps.Keys(u.found)) {
		known := u.found[leaf]
		if known.fault != "" {
			faults = append(faults, skipped("uplinks of "+leaf, known.fault))
		}
		all = append(all, known.uplinks...)
	}
	if len(all) > maxUplinks {
		all = all[:maxUplinks]
	}
	return all, faults
}
