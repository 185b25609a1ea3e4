//go:build e2e

// Package page looks at topo-master's page as a person does: with a browser, on
// a real topo-master, at 16 and at 5,000 nodes.
package page

import (
	"math/rand/v2"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/test/fabrics"
)

// small is two switchboxes of dragonflies.
func small(t *testing.T) *rig {
	t.Helper()
	f := fabrics.New(fabrics.Plan{Sizes: fabrics.Even(16, 4), Rails: 8, Dragonfly: 2, Switchbox: 4})
	return start(t, f, func(i int, node *corev1.Node) {
		switch i {
		case 9:
			notReady(node, 17*time.Minute)
		case 12:
			node.Spec.Unschedulable = true
		}
	}, func(i int) int { return []int{8, 8, 4, 0}[i%4] })
}

// large is a fat tree of 5,000 nodes with some cables wrong.
func large(t *testing.T, damage float64) *rig {
	t.Helper()
	f := fabrics.New(fabrics.Plan{Sizes: fabrics.Even(5000, 32), Rails: 8, Pod: 8})
	f.Damage(rand.New(rand.NewPCG(1, 2)), damage)
	rng := rand.New(rand.NewPCG(3, 4))
	return start(t, f, func(i int, node *corev1.Node) {
		switch {
		case i%611 == 7:
			notReady(node, time.Duration(1+i%50)*17*time.Minute)
		case i%419 == 11:
			node.Spec.Unschedulable = true
		}
	}, func(i int) int {
		if i/32%5 == 3 {
			return 0
		}
		return []int{8, 8, 8, 8, 8, 4, 2, 0}[rng.IntN(8)]
	})
}

func TestLook(t *testing.T) {
	r := small(t)
	b := open(t, r.server.URL, 1440, 900)
	b.load("/")
	b.shot("16-light")
	b.clean()
}

func TestLookLarge(t *testing.T) {
	r := large(t, 0.001)
	b := open(t, r.server.URL, 1440, 900)
	b.load("/")
	b.shot("5000-light")
	b.clean()
}
