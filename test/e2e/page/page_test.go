//go:build e2e

// Package page looks at topo-master's page as a person does: with a browser, on
// a real topo-master, at 16 and at 5,000 nodes.
package page

import (
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp/kb"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/test/fabrics"
)

// small is two switchboxes of four dragonflies of two nodes.
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

func TestShowsTheFabric(t *testing.T) {
	b := open(t, small(t).server.URL)
	b.load("/")
	type shown struct {
		Groups, Nodes    int
		Summary, Drawn   string
		NotReady, Detail string
		Pips             string
	}
	got := value[shown](b, `({
		Groups: document.querySelectorAll('#map .box').length, Nodes: document.querySelectorAll('#map .node').length,
		Summary: document.querySelector('#sum').innerText.replace(/\s+/g, ' '),
		Drawn: document.querySelector('#size').textContent,
		NotReady: document.querySelector('#map .node[data-s=notready]').ariaLabel,
		Detail: document.querySelector('#map .node.cordoned').ariaLabel,
		Pips: getComputedStyle(document.querySelector('[aria-label^="node000002"] .pips')).getPropertyValue('--k'),
	})`)
	want := shown{
		Groups: 2 + 8, Nodes: 16,
		Summary:  "16 nodes 15 ready 0 degraded 1 not ready 80 of 128 GPUs in use, 48 free",
		Drawn:    "Names and GPUs",
		NotReady: "node000009, Not ready, node not ready, busy: all 8 in use",
		Detail:   "node000012, cordoned, busy: all 8 in use",
		Pips:     "4",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("shown (-want +got):\n%s", diff)
	}
	b.shot("16-light")
	b.size(390, 844)
	b.load("/?phone")
	if wide := value[int](b, `document.documentElement.scrollWidth`); wide > 390 {
		t.Errorf("on a phone the page is %d pixels wide", wide)
	}
	b.shot("16-light-phone")
	b.clean()
}

func TestThemes(t *testing.T) {
	b := open(t, small(t).server.URL)
	background := func() string { return value[string](b, `getComputedStyle(document.body).backgroundColor`) }
	b.load("/")
	b.scheme("light")
	light := background()
	b.scheme("dark")
	dark := background()
	if light == dark {
		t.Fatalf("the system's theme makes no difference: %s", dark)
	}
	b.shot("16-dark")
	b.click("#theme") // From the system's to light.
	if got := background(); got != light {
		t.Errorf("chosen light: %s, want %s", got, light)
	}
	b.load("/?again")
	if got := background(); got != light {
		t.Errorf("chosen light, loaded again: %s, want %s", got, light)
	}
	b.click("#theme")
	b.scheme("light")
	if got := background(); got != dark {
		t.Errorf("chosen dark: %s, want %s", got, dark)
	}
	b.click("#theme")
	if got := background(); got != light {
		t.Errorf("back to the system's: %s, want %s", got, light)
	}
	b.clean()
}

func TestKeysMove(t *testing.T) {
	b := open(t, small(t).server.URL)
	b.load("/")
	value[any](b, `document.querySelector('#map [tabindex="0"]').focus()`)
	// Dragonflies have two cards, one above the other.
	for i, step := range []struct{ key, want string }{
		{kb.ArrowDown, "dragonfly-0"},
		{kb.ArrowDown, "node000000"},
		{kb.ArrowDown, "node000001"},
		{kb.ArrowDown, "dragonfly-1"},
		{kb.ArrowRight, "node000002"},
		{kb.ArrowRight, "node000003"},
		{kb.ArrowLeft, "node000002"},
		{kb.ArrowLeft, "dragonfly-1"},
		{kb.ArrowUp, "node000001"},
		{kb.PageDown, "dragonfly-1"},
		{kb.PageDown, "dragonfly-2"},
		{kb.ArrowLeft, "switchbox-0"},
		{kb.PageDown, "switchbox-1"},
		{kb.End, "node000015"},
		{kb.Home, "switchbox-0"},
	} {
		b.keys(step.key)
		if got := b.focused(); !strings.HasPrefix(got, step.want+",") {
			t.Fatalf("step %d: the focus is on %q, want %s", i, got, step.want)
		}
	}
	b.shortcut("n")
	if got := b.focused(); !strings.HasPrefix(got, "node000009, Not ready") {
		t.Errorf("next problem: %q", got)
	}
	if style := value[string](b, `getComputedStyle(document.activeElement).outlineStyle`); style != "solid" {
		t.Errorf("the focus does not show: outline %s", style)
	}
	if tabs := value[int](b, `document.querySelectorAll('#map [tabindex="0"]').length`); tabs != 1 {
		t.Errorf("Tab stops %d times in the map, want once", tabs)
	}
	b.until(`document.querySelector('#detail h2')?.textContent === 'node000009'`)
	b.until(`document.querySelectorAll('#detail .rails tbody tr').length === 8`)
	b.shot("16-light-keys")
	b.keys(kb.Home, " ")
	if open := value[string](b, `document.activeElement.ariaExpanded`); open != "false" {
		t.Errorf("Space folds a group: expanded is %s", open)
	}
	b.keys(kb.ArrowDown)
	if got := b.focused(); !strings.HasPrefix(got, "switchbox-1,") {
		t.Errorf("below a folded group: %q", got)
	}
	b.shortcut("?")
	b.until(`document.querySelector('#keys').open`)
	b.shot("16-light-help")
	b.clean()
}

func TestLive(t *testing.T) {
	r := small(t)
	b := open(t, r.server.URL)
	b.load("/")
	b.until(`document.querySelector('#live').dataset.phase === 'live'`)
	value[any](b, `window.sameDocument = true`)

	port := &r.fabric.Nodes[3].Spec.Rails[5]
	was := *port
	port.LinkState, port.Switch, port.SwitchPort = v1alpha1.LinkDown, nil, ""
	began := time.Now()
	r.report(3, time.Now())
	b.until(`document.querySelector('[aria-label^="node000003, Degraded, 1 dead port"]')`)
	t.Logf("a dead port was shown %v after it was reported", time.Since(began).Round(time.Millisecond))
	b.until(`document.querySelector('[data-kind=dead]')?.innerText.includes('leaf-g0-rail5')`)
	if age := value[string](b, `document.querySelector('[data-kind=dead] time').textContent`); !strings.HasSuffix(age, "s") {
		t.Errorf("the age of a fault that just came is %q", age)
	}
	b.until(`document.querySelector('#announce').textContent === 'node000003 is degraded'`)
	b.shot("16-light-dead-port")

	*port = was
	r.report(3, time.Now())
	b.until(`document.querySelector('[aria-label^="node000003, 8 of 8 free"]')`)
	b.until(`!document.querySelector('[data-kind=dead]')`)

	r.api.Remove("pods", "default", "train-node000000")
	b.until(`document.querySelector('[aria-label^="node000000, 8 of 8 free"]')`)
	r.api.Remove("nodes", "", "node000015")
	b.until(`document.querySelectorAll('#map .node').length === 15`)
	if !value[bool](b, `window.sameDocument === true`) {
		t.Error("the page was loaded again")
	}
	b.clean()
}

func TestOddFabrics(t *testing.T) {
	f := fabrics.New(fabrics.Plan{Sizes: fabrics.Irregular(), Rails: 8})
	for i := range 5 {
		f.Nodes[10+i*9].Spec.Rails = nil // In no group.
	}
	r := start(t, f, func(i int, node *corev1.Node) {
		if i%13 == 0 {
			node.Status.Allocatable = nil
		}
	}, func(i int) int { return i % 9 })
	// A report without a node, and a switch with a name that means harm.
	r.api.Put("nodetopologies", &v1alpha1.NodeTopology{ObjectMeta: metav1.ObjectMeta{Name: "otherPlugin"}})
	const evil = `<img src=x onerror="document.title='taken'"><b>leaf</b>`
	f.Nodes[40].Spec.Rails[2].Switch = &v1alpha1.Switch{ID: f.Leaf(3, 2, 0).ID, Name: evil}
	r.report(40, time.Now())
	b := open(t, r.server.URL)
	b.load("/#node000010")
	b.until(`document.querySelector('#detail h2')?.textContent === 'node000010'`)
	if got := value[string](b, `[...document.querySelectorAll('#map > .box')].at(-1).ariaLabel`); !strings.HasPrefix(got, "Nodes in no group, 5 nodes") {
		t.Errorf("the last box is %q", got)
	}
	b.shot("odd-light")
	b.until(`document.querySelector('[data-kind=ignored]')?.innerText.includes('Node not found')`)
	b.until(`document.querySelector('[data-kind=miscabled]')?.textContent.includes('<img src=x')`)
	if n := value[int](b, `document.querySelectorAll('img').length`); n > 0 {
		t.Errorf("the name of a switch became %d elements", n)
	}
	b.clean()
}

func TestEmpty(t *testing.T) {
	b := open(t, start(t, fabrics.New(fabrics.Plan{}), nil, nil).server.URL)
	b.load("/")
	b.until(`document.querySelector('#empty').textContent === 'The cluster has no nodes yet.'`)
	b.clean()
}
