//go:build e2e

package page

import (
	"bytes"
	"flag"
	"image/png"
	"os"
	"path/filepath"
	"testing"

	"github.com/chromedp/chromedp"
)

var update = flag.Bool("update", false, "write the pictures of the README")

// The README shows the page as it is: these pictures are taken from it by
// go test -tags e2e ./test/e2e/page -run TestPictures -update.
func TestPictures(t *testing.T) {
	b := open(t, gangs(t).server.URL)
	b.load("/")
	b.until(`document.querySelector('#sum-gangs').textContent === '5'`)
	b.click("#tab-gangs")
	b.click(`[data-gang="gang:ai/llama"]`)
	b.until(`document.querySelector('#detail h2')?.textContent === 'ai/llama'`)
	b.picture("page.png")

	b = open(t, rails(t).server.URL)
	b.load("/#/spine:spine-0/leaf:leaf-g0-rail0-plane0")
	b.click("#detail .draws button")
	b.until(`document.querySelectorAll('#cabling tbody .port').length === 18 * 8`)
	b.picture("cables.png")
}

// picture checks that docs/pictures has this window's picture, small enough for a
// page, or writes it. Bytes differ with the fonts of the machine.
func (b *browser) picture(name string) {
	b.t.Helper()
	const limit = 150 << 10
	path := filepath.Join("..", "..", "..", "docs", "pictures", name)
	content := act(b, chromedp.CaptureScreenshot())
	if *update {
		must(b.t, os.WriteFile(path, content, 0o644))
	}
	kept, err := os.ReadFile(path)
	must(b.t, err)
	for what, of := range map[string][]byte{"the page": content, path: kept} {
		size, err := png.DecodeConfig(bytes.NewReader(of))
		if err != nil || size.Width != width || size.Height != height {
			b.t.Errorf("%s: %d by %d pixels, want %d by %d: %v", what, size.Width, size.Height, width, height, err)
		}
	}
	if len(kept) > limit {
		b.t.Errorf("%s: %d bytes, want at most %d", path, len(kept), limit)
	}
}
