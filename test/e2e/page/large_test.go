//go:build e2e

package page

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/test/fabrics"
)

// large is a fat tree of 5,000 nodes with some cables wrong.
func large(t testing.TB) *rig {
	t.Helper()
	return tree(t, 5000)
}

// tree is a fat tree of leaf groups of 32 nodes, with some cables wrong.
func tree(t testing.TB, nodes int) *rig {
	t.Helper()
	f := fabrics.New(fabrics.Plan{Sizes: fabrics.Even(nodes, 32), Rails: 8, Pod: 8})
	f.Damage(rand.New(rand.NewPCG(1, 2)), 0.001)
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

func TestLarge(t *testing.T) {
	r := large(t)
	b := open(t, r.server.URL)
	b.load("/")
	b.shot("5000-light")
	t.Run("names every fault", func(t *testing.T) { namesFaults(t, r, b) })
	t.Run("search finds", func(t *testing.T) { searchFinds(t, b) })
	for range 4 {
		b.click("#larger")
		b.shot("5000-light-" + strings.ReplaceAll(strings.ToLower(value[string](b, `document.querySelector('#size').textContent`)), " ", "-"))
	}
	b.size(390, 844)
	b.load("/?phone")
	if wide := value[int](b, `document.documentElement.scrollWidth`); wide > 390 {
		t.Errorf("on a phone the page is %d pixels wide", wide)
	}
	b.shot("5000-light-phone")
	b.clean()
}

// namesFaults compares the page with the truth about the fabric.
func namesFaults(t *testing.T, r *rig, b *browser) {
	wrongs := r.fabric.Wrongs()
	var want []string
	for _, w := range wrongs {
		kind := "miscabled"
		if w.Dead {
			kind = "dead"
		}
		want = append(want, kind+" "+w.Node)
	}
	got := value[[]string](b, `[...document.querySelectorAll('[data-kind=dead], [data-kind=miscabled]')].flatMap((k) =>
		[...k.querySelectorAll('.fault .who')].map((w) => k.dataset.kind + ' ' + w.firstChild.data))`)
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(want, got) {
		t.Errorf("the page names\n%q\nwant\n%q", got, want)
	}
}

func searchFinds(t *testing.T, b *browser) {
	for _, tt := range []struct{ query, found, first string }{
		{"node003333", "1 node", "node003333"},
		{"is:notready", "9 nodes", "node000007"},
		{"leaf-g57-rail2", "32 nodes", "leaf-g57-rail0-plane0"},
		{"miscabled", "", ""},
		{"h100 0042", "", ""},
		{"free:8 leaf-g3-", "", ""},
		{"nosuchthing", "nothing", ""},
	} {
		value[any](b, `(() => { const q = document.querySelector('#query'); q.focus(); q.value = ''; })()`)
		act(b, chromedp.SendKeys(chromedp.CSS("#query"), tt.query))
		found := value[string](b, `document.querySelector('#found').textContent`)
		if tt.found != "" && found != tt.found || tt.found == "" && found == "nothing" {
			t.Errorf("%q finds %s, want %s", tt.query, found, tt.found)
		}
		first := value[string](b, `document.querySelector('#hits [role=option] .name')?.textContent ?? ''`)
		if tt.first != "" && first != tt.first {
			t.Errorf("the first that %q finds is %s, want %s", tt.query, first, tt.first)
		}
		if tt.query == "leaf-g57-rail2" {
			b.shot("5000-light-search")
		}
	}
	act(b, chromedp.SendKeys(chromedp.CSS("#query"), kb.Escape))
	if q := value[string](b, `document.querySelector('#query').value`); q != "" {
		t.Errorf("Escape leaves %q in the search", q)
	}
	act(b, chromedp.SendKeys(chromedp.CSS("#query"), "node003333"+kb.Enter))
	b.until(`document.querySelector('#detail h2')?.textContent === 'node003333'`)
	if !value[bool](b, `(() => { const r = document.querySelector('[aria-label^=node003333]').getBoundingClientRect();
		return r.top > 0 && r.bottom < innerHeight; })()`) {
		t.Error("what was found is not in view")
	}
	value[any](b, `(() => { const q = document.querySelector('#query'); q.value = ''; q.dispatchEvent(new Event('input')); scrollTo(0, 0); })()`)
}

// fill puts pods on every tenth node and waits until the first and the last of
// them show it.
func (r *rig) fill(b *browser) {
	for i := 0; i < len(r.fabric.Nodes); i += 10 {
		r.pod(r.fabric.Nodes[i].Name, 1+i/10%8)
	}
	// Nodes are drawn once they come near the window.
	value[any](b, `scrollTo(0, document.documentElement.scrollHeight)`)
	b.until(`document.querySelector('[aria-label="node004990, 4 of 8 free"]')`)
	value[any](b, `scrollTo(0, 0)`)
	b.until(`document.querySelector('[aria-label="node000000, 7 of 8 free"]')`)
}

// BenchmarkPage is what 5,000 nodes cost the browser; make bench runs it.
func BenchmarkPage(b *testing.B) {
	r := large(b)
	for b.Loop() {
		tab := open(b, r.server.URL)
		tab.load("/")
		b.ReportMetric(value[float64](tab, `performance.getEntriesByName('fabric-painted')[0].startTime`), "painted-ms")
		b.ReportMetric(value[float64](tab, `performance.getEntriesByName('fabric-shown')[0].duration`), "script-ms")
		b.ReportMetric(value[float64](tab, `performance.memory.usedJSHeapSize / 1e6`), "heap-MB")
		slowest := 0.0
		for range 5 { // Dots, cells, tiles, chips, cards.
			frames := value[[]float64](tab, scrolling)
			slices.Sort(frames)
			slowest = max(slowest, frames[len(frames)/2])
			value[any](tab, painted(`document.querySelector('#larger').click();`))
		}
		b.ReportMetric(slowest, "frame-ms")
		value[any](tab, `(() => { document.querySelector('#fit').click(); scrollTo(0, 0); })()`)
		b.ReportMetric(value[float64](tab, painted(`
			const q = document.querySelector('#query'); q.value = 'node00 1'; q.dispatchEvent(new Event('input'));`)), "search-ms")
		value[any](tab, `(() => { const q = document.querySelector('#query'); q.value = ''; q.dispatchEvent(new Event('input')); })()`)
		r.fill(tab)
		b.ReportMetric(value[float64](tab, `performance.getEntriesByName('fabric-shown').at(-1).duration`), "change-ms")
	}
}

// painted is the time in milliseconds until what some code did is painted.
func painted(code string) string {
	return `new Promise((done) => requestAnimationFrame(() => {
		const began = performance.now();
		` + code + `
		requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - began)));
	}))`
}

// scrolling is the durations of frames while the page scrolls for two seconds.
const scrolling = `new Promise((done) => {
	scrollTo(0, 0);
	const frames = [];
	let last = 0;
	const step = (now) => {
		if (last) frames.push(now - last);
		last = now;
		if (frames.length === 120) return done(frames);
		scrollBy(0, 60);
		requestAnimationFrame(step);
	};
	requestAnimationFrame(step);
})`
