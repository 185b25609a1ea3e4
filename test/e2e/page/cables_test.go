//go:build e2e

package page

import (
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp/kb"
	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/test/fabrics"
)

// rails is two leaf groups of 18 nodes with 8 rails; a cable is on the other
// group's leaf, one is dead, and one rail is not there.
func rails(t *testing.T) *rig {
	t.Helper()
	f := fabrics.New(fabrics.Plan{Sizes: []int{18, 18}, Rails: 8, Pod: 2, Spines: 4})
	wrong := &f.Nodes[5].Spec.Rails[3]
	wrong.Switch, wrong.SwitchPort = new(f.Leaf(1, 3, 0)), "64"
	dead := &f.Nodes[7].Spec.Rails[6]
	dead.LinkState, dead.Switch, dead.SwitchPort = v1alpha1.LinkDown, nil, ""
	f.Nodes[9].Spec.Rails = f.Nodes[9].Spec.Rails[:7]
	return start(t, f, nil, func(i int) int { return i % 9 })
}

// drawn is what a drawing has in each state, by the sentences of the ports.
func drawn(b *browser, state string) []string {
	b.t.Helper()
	return value[[]string](b, `[...document.querySelectorAll('#cabling table .port[data-state=`+state+`]')].map((p) => p.ariaLabel)`)
}

// A group is drawn as nodes by rails. What is wrong is red, and shows where the
// cable is and where it should be; a switch shows who is on its ports.
func TestDrawsCables(t *testing.T) {
	b := open(t, rails(t).server.URL)
	b.load("/#/spine:spine-0/leaf:leaf-g0-rail0-plane0")
	b.click("#detail .draws button")
	b.until(`document.querySelectorAll('#cabling tbody .port').length === 18 * 8`)
	b.shot("cables-light")
	const wrong = "node000005 rail 3 is on the wrong switch: leaf-g1-rail3-plane0 port 64, expected on leaf-g0-rail3-plane0"
	for state, want := range map[string][]string{
		"wrong": {wrong}, "down": {"node000007 rail 6 has no active link, expected on leaf-g0-rail6-plane0"},
		"missing": {"node000009 rail 7 has no port, expected on leaf-g0-rail7-plane0"},
	} {
		if diff := cmp.Diff(want, drawn(b, state)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", state, diff)
		}
	}
	red := value[string](b, `getComputedStyle(document.querySelector('.port[data-state=wrong]')).backgroundColor`)
	if !strings.HasPrefix(red, "rgb(179, 38, 30") {
		t.Errorf("the wrong cable is %s", red)
	}
	b.click("#cabling table .port[data-state=wrong]")
	b.until(`document.querySelector('#detail h2')?.textContent === 'node000005 rail 3'`)
	b.shot("cables-light-wrong")

	// The far end: who is on that port of that leaf.
	value[any](b, `[...document.querySelectorAll('#detail .link')].find((l) => l.textContent === 'leaf-g1-rail3-plane0 port 64').click()`)
	b.until(`document.querySelector('#cabling .answer')`)
	if got, want := value[string](b, `document.querySelector('#cabling .answer').textContent`), "Port 64: "+wrong; got != want {
		t.Errorf("who is on the port:\n%s\nwant\n%s", got, want)
	}
	b.shot("cables-light-switch")
	b.click(`#cabling .plate .port[aria-label^="Port 2:"]`)
	b.until(`document.querySelector('#cabling .answer').textContent === 'Port 2: node000019 rail 3 is on leaf-g1-rail3-plane0 port 2'`)
	b.click(`#cabling .plate .port[aria-label^="Port 33:"]`)
	b.until(`document.querySelector('#cabling .answer').textContent.startsWith('Port 33: cable to switch spine-')`)
	b.click(`#cabling .plate .port[aria-label^="Port 60:"]`)
	b.until(`document.querySelector('#cabling .answer').textContent === 'Port 60: no node and no known uplink is on it'`)
	// The leaf where it should be knows that it lacks it.
	b.load("/?switch=leaf-g0-rail3-plane0")
	b.until(`document.querySelector('#cabling section')?.innerText.includes('` + wrong + `')`)
	// The group on which it is shows it as a foreign one.
	b.load("/?group=leaf-g1-rail0-plane0&kind=leaf")
	b.until(`document.querySelector('#cabling .foreign')`)
	if diff := cmp.Diff([]string{wrong}, drawn(b, "wrong")); diff != "" {
		t.Errorf("foreign (-want +got):\n%s", diff)
	}
	b.scheme("dark")
	b.shot("cables-dark-foreign")
	b.clean()
}

// The address has the search, the drawing and the cable, and the back button
// leads back.
func TestAddress(t *testing.T) {
	b := open(t, rails(t).server.URL)
	b.load("/")
	address := func() string { return value[string](b, `decodeURIComponent(location.search + location.hash)`) }
	b.click(`.stat[data-s=degraded]`)
	b.until(`document.querySelector('#query').value === 'is:degraded'`)
	if got := address(); got != "?q=is:degraded" {
		t.Errorf("the address of a filter is %q", got)
	}
	b.load("/?group=leaf-g0-rail0-plane0&kind=leaf&cable=node000005/3")
	b.until(`document.querySelector('#detail h2')?.textContent === 'node000005 rail 3'`)
	if !value[bool](b, `document.querySelector('.port[data-state=wrong]').ariaCurrent === 'true'`) {
		t.Error("the cable of the address is not marked")
	}
	b.click(`.port[data-state=down]`)
	b.until(`document.querySelector('#detail h2')?.textContent === 'node000007 rail 6'`)
	if got, want := address(), "?kind=leaf&group=leaf-g0-rail0-plane0&cable=node000007/6"; got != want {
		t.Errorf("the address of a cable is %q, want %q", got, want)
	}
	value[any](b, `history.back()`)
	b.until(`document.querySelector('#detail h2')?.textContent === 'node000005 rail 3'`)
	b.click(`#cabling .back`)
	b.until(`!document.querySelector('#map').hidden && document.querySelector('#cabling').hidden`)
	value[any](b, `history.back()`)
	b.until(`document.querySelector('#map').hidden && document.querySelector('.port[data-state=wrong]')?.ariaCurrent === 'true'`)
	b.load("/?q=is:degraded")
	b.until(`document.querySelector('#query').value === 'is:degraded' && document.querySelectorAll('#map .node.hit').length === 3`)
	b.keys(kb.Escape)
	b.until(`location.search === '?' || location.search === ''`)
	b.clean()
}

// The counters of a port that mean harm are at its cable, and a cable that has
// counted errors is marked.
func TestCountersOfACable(t *testing.T) {
	r := rails(t)
	r.fabric.Nodes[2].Spec.Rails[4].Counters = &v1alpha1.Counters{
		SymbolErrors: 1250, LinkDowns: 2, LinkErrorRecoveries: 1, BitErrorRate: "2.5e-13",
		Time: metav1.NewTime(time.Now().Add(-5 * time.Minute)),
	}
	r.report(2, time.Now())
	b := open(t, r.server.URL)
	b.load("/?group=leaf-g0-rail0-plane0&kind=leaf")
	b.until(`document.querySelectorAll('#cabling tbody .port[data-errors]').length === 1`)
	b.click(`#cabling tbody .port[data-errors]`)
	b.until(`/1,250 symbol errors, 2 link downs, 1 link error recovery, bit error rate 2.5e-13, read 5m(\d+s)? ago/.test(document.querySelector('#detail').innerText)`)
	b.shot("cables-light-counters")
	b.load("/?switch=leaf-g0-rail4-plane0&port=3")
	b.until(`document.querySelector('#cabling .list tr[aria-current] .means')?.textContent.startsWith('1,250 symbol errors')`)
	b.clean()
}
