package enforce

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"
)

const (
	// excessFor is how long a container may be over its share until its pod gets an Event.
	excessFor = 30 * time.Second
	// graceFor is how long after that Event the pod is evicted, if the container still is
	// over its share.
	graceFor = time.Minute
	// fullPercent is the percentage of a GPU's memory in use from which it is full.
	fullPercent = 95
)

// Use has a container's part of a GPU and what it uses.
type Use struct {
	Namespace, Pod, UID, Container string
	// GPU is the UUID, Index the driver's number, Total the GPU's memory in bytes.
	GPU   string
	Index int
	Total int64
	// Share is the container's in bytes, Used what its processes have; Unknown
	// where that is not certain.
	Share, Used int64
	// Percent is the container's compute if nothing enforces it, else 0; SM is the compute that it
	// uses.
	Percent, SM int64
	// Priority is the pod's. Evictable reports that the container was started with
	// enforcer evict, and that its pod can be evicted. Terminating: the pod is being deleted.
	Priority               int32
	Evictable, Terminating bool
	// Enforced are the enforcers of the container's limits.
	Enforced Enforced
}

// Unknown is a use of memory or of compute that is not known.
const Unknown int64 = -1

// over is how much memory the container has beyond its share; negative if it has less.
func (u *Use) over() int64 { return u.Used - u.Share }

// Excess is the kind of a fault that lasts.
type Excess string

// The kinds of excess.
const (
	// OverMemory: a container has more memory than its share.
	OverMemory Excess = "memory"
	// OverCompute: a container uses more compute than its share. Its pod is never evicted
	// for that.
	OverCompute Excess = "compute"
	// FullGPU: the GPU is full, and a container of a higher priority has not all of
	// its share.
	FullGPU Excess = "full"
)

// Subject identifies one excess of a container on a GPU.
type Subject struct {
	UID, Container, GPU string
	Excess              Excess
}

// Timing is since when an excess lasts, and when it was reported.
type Timing struct{ Since, Reported time.Time }

// Action answers an excess: the pod is warned, once, or evicted.
type Action struct {
	Use
	Excess Excess
	Evict  bool
	// Message is the text of the pod's Event: a sentence about the container, and what
	// follows from it.
	Message string
}

// CheckUses derives actions from the uses of containers at a time, evictions by
// the lowest priority first, and from the timings of the last time to those now. A use
// that is not known neither begins nor ends a timing, and no pod is evicted by it.
func CheckUses(now time.Time, uses []Use, last map[Subject]Timing) ([]Action, map[Subject]Timing) {
	timings := make(map[Subject]Timing)
	var actions []Action
	for _, f := range findings(uses) {
		subject := Subject{f.use.UID, f.use.Container, f.use.GPU, f.excess}
		timing, lasts := last[subject]
		switch {
		case !lasts && f.reason == "":
			continue
		case !lasts:
			timing.Since = now
		}
		switch {
		case f.reason == "": // It is not known.
		case timing.Reported.IsZero() && now.Sub(timing.Since) >= excessFor:
			timing.Reported = now
			actions = append(actions, Action{Use: *f.use, Excess: f.excess, Message: f.warning()})
		case !timing.Reported.IsZero() && f.excess != OverCompute && now.Sub(timing.Reported) >= graceFor:
			actions = append(actions, Action{Use: *f.use, Excess: f.excess, Evict: true, Message: f.message()})
		}
		timings[subject] = timing
	}
	slices.SortStableFunc(actions, func(a, b Action) int {
		return cmp.Or(cmp.Compare(a.Priority, b.Priority), cmp.Compare(b.over(), a.over()))
	})
	return actions, timings
}

// finding is an excess; one without a reason may be or not, as the use is not known. A
// reason is a sentence without its subject, the container.
type finding struct {
	use    *Use
	excess Excess
	reason string
}

func (f *finding) message() string { return fmt.Sprintf("container %s %s", f.use.Container, f.reason) }

// warning returns the message before an eviction.
func (f *finding) warning() string {
	if f.excess == OverCompute {
		return f.message() + "; nothing limits it (sgpu.enforce.compute)"
	}
	return fmt.Sprintf("%s; the pod is evicted if that is so in %s", f.message(), graceFor)
}

func findings(uses []Use) []finding {
	var all []finding
	for i := range uses {
		for _, excess := range []Excess{OverMemory, OverCompute} {
			if reason, known := uses[i].excess(excess); reason != "" || !known {
				all = append(all, finding{&uses[i], excess, reason})
			}
		}
	}
	return append(all, victims(uses)...)
}

// excess returns why a container exceeds its share, or an empty string. It is unknown if the
// container's use is unknown.
func (u *Use) excess(kind Excess) (reason string, known bool) {
	switch {
	case !u.Evictable, u.Terminating:
		return "", true
	case kind == OverMemory && u.Used > u.Share:
		return fmt.Sprintf("has %d MiB of GPU %d, and its share is %d MiB", mib(u.Used), u.Index, mib(u.Share)), true
	case kind == OverMemory:
		return "", u.Used != Unknown
	case u.Percent > 0 && u.SM > u.Percent:
		return fmt.Sprintf("uses GPU %d for %d %% of the time, and its share is %d %%", u.Index, u.SM, u.Percent), true
	}
	return "", u.Percent == 0 || u.SM != Unknown
}

// mib rounds up, as more than a share must not look like the share.
func mib(bytes int64) int64 { return (bytes + 1<<20 - 1) >> 20 }

// victims returns, for each full GPU with overcommitted memory, the container that makes room for a
// container of a higher priority that has not reached its share. Containers come first as in the
// kubelet's eviction: those over their share, then the lowest priority, then the most over its
// share.
func victims(uses []Use) []finding {
	byGPU := make(map[string][]*Use)
	var order []string
	for i := range uses {
		if byGPU[uses[i].GPU] == nil {
			order = append(order, uses[i].GPU)
		}
		byGPU[uses[i].GPU] = append(byGPU[uses[i].GPU], &uses[i])
	}
	var all []finding
	for _, gpu := range order {
		var used, shares int64
		terminates := false
		needy := int32(math.MinInt32)
		for _, u := range byGPU[gpu] {
			used, shares = used+max(u.Used, 0), shares+u.Share
			terminates = terminates || u.Terminating && u.Used != 0
			if u.Used != Unknown && u.over() < 0 {
				needy = max(needy, u.Priority)
			}
		}
		total := byGPU[gpu][0].Total
		if terminates || total <= 0 || shares <= total || used < total/100*fullPercent {
			continue // A pod that terminates makes room already.
		}
		lower := slices.DeleteFunc(byGPU[gpu], func(u *Use) bool {
			return !u.Evictable || u.Used <= 0 || u.Priority >= needy
		})
		if len(lower) == 0 {
			continue
		}
		slices.SortStableFunc(lower, func(a, b *Use) int {
			return cmp.Or(-cmp.Compare(min(max(a.over(), 0), 1), min(max(b.over(), 0), 1)),
				cmp.Compare(a.Priority, b.Priority), cmp.Compare(b.over(), a.over()))
		})
		all = append(all, finding{lower[0], FullGPU, fmt.Sprintf(
			"has %d MiB of GPU %d, which is full, and a container of priority %d has not all of its share; its own is %d",
			mib(lower[0].Used), lower[0].Index, needy, lower[0].Priority)})
	}
	return all
}
