//go:build e2e

package page

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// axe-core as npm has it, and the checksum of its archive. It is fetched for the test,
// and no part of the repository.
const (
	axeVersion = "4.10.3"
	axeSum     = "0f2b4d7dcdf7d1219df8d1959ad68e565f51d14c3f0d88bb71cd59abeb956292"
)

// TestAxe: axe-core finds nothing on the page, in either theme: the map at each size, searches, filters, problems, gangs,
// nodes with pods and shares, cables, switches, help, a lost server.
func TestAxe(t *testing.T) {
	axe := axeSource(t)
	t.Run("map", func(t *testing.T) {
		b := open(t, small(t).server.URL)
		for _, path := range []string{"/", "/?q=nothing-has-this-name", "/?q=is:degraded", "/#/dragonfly-3"} {
			b.load(path)
			check(b, axe, path)
		}
		b.shortcut("?")
		check(b, axe, "help")
		b.load("/")
		b.shortcut("j")
		check(b, axe, "plan")
	})
	t.Run("use", func(t *testing.T) {
		r := shares(t)
		r.member("ai", "next", 0, "", rejected("rejected by podgroup ai/next: 2 of 3 fit", time.Minute))
		b := open(t, r.server.URL)
		for _, window := range []int64{width, 800} {
			b.size(window, height)
			b.load("/?pods#" + sharing)
			b.until(`document.querySelectorAll('#detail .pods li').length === 3`)
			check(b, axe, "pods and shares of a node")
			b.load("/?q=ns:notebooks+use:part")
			b.until(lit + ` === '02'`)
			check(b, axe, "filters and a rejected gang")
		}
		r.away()
		b.until(`!document.querySelector('#old').hidden`)
		check(b, axe, "without a server")
	})
	t.Run("gangs", func(t *testing.T) {
		b := open(t, gangs(t).server.URL)
		b.load("/")
		b.click("#tab-gangs")
		b.until(`document.querySelector('[data-gang="gang:ai/llama"]') !== null`)
		check(b, axe, "list")
		b.click(`[data-gang="gang:ai/llama"]`)
		b.until(`document.querySelector('#detail h2')?.textContent === 'ai/llama'`)
		check(b, axe, "chosen")
	})
	t.Run("why", func(t *testing.T) {
		b := open(t, waiting(t).server.URL)
		b.load("/#gang:ai/next")
		b.until(`document.querySelector('#detail section[aria-label="Why it waits"]') !== null`)
		check(b, axe, "why a gang waits")
	})
	t.Run("cables", func(t *testing.T) {
		b := open(t, rails(t).server.URL)
		b.load("/?group=leaf-g0-rail0-plane0&kind=leaf&cable=node000005/3")
		b.until(`document.querySelector('#detail h2')?.textContent === 'node000005 rail 3'`)
		check(b, axe, "a cable")
		b.load("/?switch=leaf-g0-rail3-plane0&port=5")
		b.until(`document.querySelector('#cabling .answer') !== null`)
		check(b, axe, "a switch")
	})
	t.Run("large", func(t *testing.T) {
		b := open(t, large(t).server.URL)
		b.load("/")
		for range 5 {
			check(b, axe, value[string](b, `document.querySelector('#size').textContent`))
			b.click("#larger")
		}
	})
}

// check reports what axe-core finds, with the elements, once colors have settled.
func check(b *browser, axe, where string) {
	b.t.Helper()
	for _, theme := range []string{"light", "dark"} {
		b.scheme(theme)
		value[any](b, axe+";0")
		found := value[string](b, `Promise.all(document.getAnimations()
			.filter(a => a.effect.getComputedTiming().iterations !== Infinity).map(a => a.finished.catch(() => 0)))
			.then(() => axe.run()).then(r => JSON.stringify(r.violations.map(v =>
				v.id + ": " + v.help + ": " + v.nodes.map(n => n.target.join(" ") + " " + n.failureSummary).join("; "))))`)
		var findings []string
		if err := json.Unmarshal([]byte(found), &findings); err != nil {
			b.t.Fatal(err)
		}
		for _, f := range findings {
			b.t.Errorf("%s, %s: %s", where, theme, f)
		}
	}
}

// axeSource fetches axe-core with npm; where that cannot be, the test is skipped.
func axeSource(t *testing.T) string {
	t.Helper()
	npm, err := exec.LookPath("npm")
	if err != nil {
		t.Skip("no npm, which fetches axe-core")
	}
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	command := exec.CommandContext(ctx, npm, "pack", "--silent", "axe-core@"+axeVersion)
	command.Dir = dir
	if out, err := command.CombinedOutput(); err != nil {
		t.Skipf("npm does not fetch axe-core: %v: %.300s", err, out)
	}
	archive, err := os.ReadFile(filepath.Join(dir, "axe-core-"+axeVersion+".tgz"))
	if err != nil {
		t.Fatal(err)
	}
	if sum := sha256.Sum256(archive); hex.EncodeToString(sum[:]) != axeSum {
		t.Fatalf("axe-core %s is not the archive that the test knows: %x", axeVersion, sum)
	}
	plain, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		t.Fatal(err)
	}
	for files := tar.NewReader(plain); ; {
		file, err := files.Next()
		if err != nil {
			t.Fatalf("find axe.min.js: %v", err)
		}
		if strings.HasSuffix(file.Name, "/axe.min.js") {
			text, err := io.ReadAll(files)
			if err != nil {
				t.Fatal(err)
			}
			return string(text)
		}
	}
}
