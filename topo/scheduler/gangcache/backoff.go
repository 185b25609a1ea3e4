package gangcache

import (
	"cmp"
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// A gang avoids a node that rejected a member for a reason unknown to planner (volumes, other pods'
// affinity), at first for a moment, since the node may be changing, then twice as long each time.
const backoffFirst, backoffMost = 2 * time.Second, time.Minute

// Backoffs are the nodes that gangs and native PodGroups avoid. They are safe for
// concurrent use.
type Backoffs struct {
	mu    sync.Mutex
	gangs map[types.NamespacedName]*backoff
}

type backoff struct {
	until    map[string]time.Time
	failures int
	// message explains why the last of the nodes rejected the member.
	message string
	// last is the end of the last back-off.
	last time.Time
}

// Add avoids nodes that rejected a member, with the message of the last node.
func (all *Backoffs) Add(gang types.NamespacedName, message string, nodes ...string) {
	all.mu.Lock()
	defer all.mu.Unlock()
	b := cmp.Or(all.gangs[gang], &backoff{until: map[string]time.Time{}})
	all.gangs[gang] = b
	b.last = time.Now().Add(min(backoffFirst<<min(b.failures, 10), backoffMost))
	for _, node := range nodes {
		b.until[node] = b.last
	}
	b.failures++
	b.message = message
}

// Avoided returns the nodes that a gang avoids now. The reason why they rejected a member
// continues placement's text, and is empty without nodes or a message.
func (all *Backoffs) Avoided(gang types.NamespacedName) (nodes []string, reason string) {
	all.mu.Lock()
	defer all.mu.Unlock()
	b := all.gangs[gang]
	if b == nil {
		return nil, ""
	}
	for node, until := range b.until {
		if !time.Now().After(until) {
			nodes = append(nodes, node)
		}
	}
	if len(nodes) > 0 && b.message != "" {
		reason = ", which rejected a member: " + b.message
	}
	return nodes, reason
}

// End ends the back-offs of a gang that has its nodes.
func (all *Backoffs) End(gang types.NamespacedName) {
	all.mu.Lock()
	defer all.mu.Unlock()
	delete(all.gangs, gang)
}

// end ends back-offs and returns their gangs. It forgets gangs whose last back-off ended long ago.
func (all *Backoffs) end(over func(node string, until time.Time) bool) (ended []types.NamespacedName) {
	all.mu.Lock()
	defer all.mu.Unlock()
	for gang, b := range all.gangs {
		before := len(b.until)
		maps.DeleteFunc(b.until, over)
		if len(b.until) < before {
			ended = append(ended, gang)
		}
		if time.Since(b.last) > backoffMost {
			delete(all.gangs, gang)
		}
	}
	return ended
}

// forget ends the back-offs of a node and returns their gangs.
func (all *Backoffs) forget(node string) []types.NamespacedName {
	return all.end(func(avoided string, _ time.Time) bool { return avoided == node })
}
