package gangcache

import (
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// A gang avoids a node that rejected a member for what no plan contains (volumes,
// other pods' affinity): at first for a moment, since the node may be changing, and
// twice as long each time.
const backoffFirst, backoffMost = 2 * time.Second, time.Minute

// backoff are the nodes that a gang avoids.
type backoff struct {
	until    map[string]time.Time
	failures int
}

// add avoids a node.
func (b *backoff) add(node string, now time.Time) {
	if b.until == nil {
		b.until = map[string]time.Time{}
	}
	b.until[node] = now.Add(min(backoffFirst<<min(b.failures, 10), backoffMost))
	b.failures++
}

// nodes are those that are avoided now.
func (b *backoff) nodes(now time.Time) []string {
	b.expire(now)
	return slices.Collect(maps.Keys(b.until))
}

// expire reports whether a node is avoided no longer.
func (b *backoff) expire(now time.Time) (expired bool) {
	before := len(b.until)
	maps.DeleteFunc(b.until, func(_ string, until time.Time) bool { return now.After(until) })
	return len(b.until) < before
}

// forget reports whether a node was avoided.
func (b *backoff) forget(node string) (avoided bool) {
	_, avoided = b.until[node]
	delete(b.until, node)
	return avoided
}

// BackOff makes a native PodGroup avoid a node, in its next cycles too.
func (c *Cache) BackOff(podGroup types.NamespacedName, node string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	// Groups that have not avoided a node for long are forgotten.
	maps.DeleteFunc(c.native, func(key types.NamespacedName, b *backoff) bool {
		return len(b.nodes(now.Add(-backoffMost))) == 0 && key != podGroup
	})
	b := c.native[podGroup]
	if b == nil {
		b = &backoff{}
		c.native[podGroup] = b
	}
	b.add(node, now)
}

// Avoided are the nodes that a native PodGroup avoids now.
func (c *Cache) Avoided(podGroup types.NamespacedName) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var nodes []string
	if b := c.native[podGroup]; b != nil {
		for node, until := range b.until {
			if !c.now().After(until) {
				nodes = append(nodes, node)
			}
		}
	}
	return nodes
}

// Placed ends the back-off of a native PodGroup that has its nodes.
func (c *Cache) Placed(podGroup types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.native, podGroup)
}
