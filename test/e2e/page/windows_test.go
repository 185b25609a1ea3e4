//go:build e2e

package page

import (
	"fmt"
	"testing"
	"time"
)

// cut are the texts that are wider than their place. The heads of groups and the cards of nodes have tips with all of it.
const cut = `[...document.querySelectorAll('#sum *, #filters label, .tabs *, .who, .ends, .ends *, dd, h2, h3, .advice, td, th, .legend li')]
	.filter((e) => e.offsetParent && e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).display !== 'inline' && !e.closest('.vh'))
	.map((e) => e.className + ' ' + e.textContent)`

// TestWindows looks at 16, 512 and 4,608 nodes in windows of 1400 and 800 pixels: nothing is wider than the window, and
// no text is cut. With HEDDLE_ARTIFACTS it keeps a picture of each.
func TestWindows(t *testing.T) {
	for _, tt := range []struct {
		nodes  int
		start  func(t *testing.T) *rig
		chosen string
	}{
		{16, shares, sharing},
		{512, func(t *testing.T) *rig { return tree(t, 512) }, "node000013"},
		{4608, func(t *testing.T) *rig { return tree(t, 4608) }, "gang:ai/giant"},
	} {
		t.Run(fmt.Sprint(tt.nodes), func(t *testing.T) {
			r := tt.start(t)
			for i := range 12 {
				r.member("ai", "giant", i, "", rejected("rejected by podgroup ai/giant: 8 of 12 fit, group leaf-g3-rail0 is 32 GPUs short", 6*time.Minute))
			}
			b := open(t, r.server.URL)
			for _, window := range []int64{1400, 800} {
				b.size(window, 900)
				for at, chosen := range map[string]string{"": "", "-details": tt.chosen} {
					path := fmt.Sprintf("/?%d%s#%s", window, at, chosen)
					b.load(path)
					b.until(`document.querySelector('#sum-gangs').textContent === '1'`)
					if chosen != "" {
						b.until(`document.querySelector('#detail .rails, #detail section') !== null`)
					}
					if wide := value[int64](b, `document.documentElement.scrollWidth`); wide > window {
						t.Errorf("%s: the page is %d pixels wide in a window of %d", path, wide, window)
					}
					if texts := value[[]string](b, cut); len(texts) > 0 {
						t.Errorf("%s in %d pixels: cut are %q", path, window, texts)
					}
					b.shot(fmt.Sprintf("window-%d-%d%s", tt.nodes, window, at))
				}
			}
			t.Logf("%d nodes: shown in %.0f ms", tt.nodes, value[float64](b, `performance.getEntriesByName('fabric-shown')[0].duration`))
			b.clean()
		})
	}
}
