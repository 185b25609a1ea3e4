package gangcache

import (
	"fmt"
	"strings"
	"time"
	"unicode"

	"k8s.io/apimachinery/pkg/types"
)

// reasonEvery is the least time between two changes of a rejected gang's reason, since each change
// writes to pods. The leader shows a reason of another kind at once.
const reasonEvery = time.Minute

// rejection explains why a gang has no nodes, and names the member that tries again.
type rejection struct {
	// reason is empty for a gang that is not rejected. It was set at reasonSince.
	reason      string
	reasonSince time.Time
	// since is the time of the first rejection after the gang lost its nodes.
	since time.Time
	// leader is the member that tries again for all.
	leader *member
	// shared is the reason that all members show, since sharedAt.
	shared   string
	sharedAt time.Time
}

// record notes why the gang has no nodes, and reports whether it was not rejected before.
func (r *rejection) record(reason string, now time.Time) (first bool) {
	if r.since.IsZero() {
		r.since = now
	}
	first = r.reason == ""
	if first || kindOf(reason) != kindOf(r.reason) || now.Sub(r.reasonSince) >= reasonEvery {
		r.reason, r.reasonSince = reason, now
	}
	return first
}

// accept ends the rejection of a gang that has a plan. since stays until its members have
// nodes.
func (r *rejection) accept() { r.reason, r.leader = "", nil }

// repeats reports whether a member shows the leader's reason instead of a try.
func (r *rejection) repeats(m *member) bool {
	return r.reason != "" && r.leader != m && r.leader.schedulable() && m.stage == pending
}

// share reports whether the members, except for the leader, should show the current reason.
func (r *rejection) share(now time.Time) bool {
	if r.reason == "" || kindOf(r.reason) == kindOf(r.shared) || now.Sub(r.sharedAt) < reasonEvery {
		return false
	}
	first := r.shared == "" // Then they get it in their first cycle.
	r.shared, r.sharedAt = r.reason, now
	return !first
}

// kindOf returns a reason without the parts that change whenever a pod starts or ends: its
// numbers, and the group that comes closest.
func kindOf(reason string) string {
	what, _, _ := strings.Cut(reason, ",")
	return strings.Map(func(r rune) rune {
		if unicode.IsDigit(r) {
			return -1
		}
		return r
	}, what)
}

// Rejection returns what a member shows.
func Rejection(gang types.NamespacedName, reason string) string {
	return fmt.Sprintf("rejected by podgroup %s: %s", gang.Name, reason)
}
