//go:build e2e

package page

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// browser is a tab of a headless Chromium that keeps what it should not do.
type browser struct {
	t   testing.TB
	ctx context.Context //nolint:containedctx // It is the tab.
	url string

	// mu guards the rest: events come from another goroutine.
	mu       sync.Mutex
	requests []string
	errors   []string
}

// The window of a laptop, in CSS pixels.
const width, height = 1440, 900

// open starts a Chromium of its own, with no profile.
func open(t testing.TB, url string) *browser {
	t.Helper()
	options := []chromedp.ExecAllocatorOption{
		chromedp.ExecPath(chromium(t)), chromedp.UserDataDir(t.TempDir()), chromedp.NoFirstRun, chromedp.NoDefaultBrowserCheck,
		chromedp.Headless, chromedp.NoSandbox, chromedp.DisableGPU, chromedp.WindowSize(width, height),
	}
	for _, flag := range []string{
		"disable-quic", "disable-background-networking", "disable-component-update", "disable-sync", "disable-default-apps",
		"disable-extensions", "disable-dev-shm-usage",
	} {
		options = append(options, chromedp.Flag(flag, true))
	}
	alloc, stop := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(stop)
	ctx, cancel := chromedp.NewContext(alloc)
	t.Cleanup(func() {
		if err := chromedp.Cancel(ctx); err != nil {
			t.Logf("close the browser: %v", err)
		}
		cancel()
	})
	b := &browser{t: t, ctx: ctx, url: url}
	must(t, chromedp.Do(ctx)) // The first run starts the browser and must have no deadline.
	must(t, chromedp.Listen(ctx, b.onEvent))
	call(b, network.Enable, network.EnableParams{})
	call(b, log.Enable, cdp.Empty{})
	call(b, runtime.Enable, cdp.Empty{})
	b.size(width, height)
	return b
}

// patience is for axe-core on the largest map, on a machine with other work.
const patience = 2 * time.Minute

// call runs a command of the protocol, within its patience.
func call[P, R any](b *browser, command cdp.Command[P, R], params P) R {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	out, err := chromedp.Call(ctx, command, params)
	if err != nil {
		b.t.Fatalf("%s: %v\n%s", command.Method, err, b.complaints())
	}
	return out
}

// act runs an action, within its patience.
func act[T any](b *browser, action chromedp.Action[T]) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	out, err := chromedp.Run(ctx, action)
	if err != nil {
		b.t.Fatalf("%v\n%s", err, b.complaints())
	}
	return out
}

// value evaluates JavaScript, awaiting promises.
func value[T any](b *browser, expression string) T {
	b.t.Helper()
	return act(b, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
}

// chromium is the browser's path; without one the test is skipped.
func chromium(t testing.TB) string {
	t.Helper()
	for _, name := range []string{os.Getenv("HEDDLE_CHROMIUM"), "chromium", "chromium-browser", "google-chrome"} {
		if name == "" {
			continue
		}
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Skip("no chromium on this machine (Debian: apt-get install chromium fonts-dejavu-core)")
	return ""
}

func (b *browser) onEvent(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *network.EventRequestWillBeSent:
		b.requests = append(b.requests, e.Request.URL)
	case *runtime.EventExceptionThrown:
		text := e.ExceptionDetails.Text
		if x := e.ExceptionDetails.Exception; x != nil {
			text += " " + x.Description
		}
		b.errors = append(b.errors, text)
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.ConsoleAPICalledTypeError || e.Type == runtime.ConsoleAPICalledTypeWarning {
			for _, a := range e.Args {
				b.errors = append(b.errors, string(a.Value)+a.Description)
			}
		}
	case *log.EventEntryAdded:
		if e.Entry.Level == log.EntryLevelError || e.Entry.Level == log.EntryLevelWarning {
			b.errors = append(b.errors, e.Entry.Text+" "+e.Entry.URL)
		}
	}
}

func (b *browser) complaints() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return "errors of the page: " + strings.Join(b.errors, "\n")
}

// load shows the page and waits until the fabric is painted.
func (b *browser) load(path string) {
	b.t.Helper()
	act(b, chromedp.Navigate(b.url+path))
	b.until(`performance.getEntriesByName('fabric-painted').length > 0`)
}

// until waits for a JavaScript expression to be true.
func (b *browser) until(expression string) {
	b.t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !value[bool](b, "Boolean("+expression+")") {
		if time.Now().After(deadline) {
			b.shot("failed")
			b.t.Fatalf("%s never came true\n%s", expression, b.complaints())
		}
		<-time.After(20 * time.Millisecond)
	}
}

// keys presses keys on whatever has the focus.
func (b *browser) keys(keys ...string) {
	b.t.Helper()
	for _, key := range keys {
		act(b, chromedp.KeyEvent(key))
	}
}

// shortcut presses a key that means something to the page and types nothing:
// what a browser does when a page prevents the default.
func (b *browser) shortcut(key string) {
	b.t.Helper()
	for _, kind := range []input.DispatchKeyEventType{input.DispatchKeyEventTypeRawKeyDown, input.DispatchKeyEventTypeKeyUp} {
		call(b, input.DispatchKeyEvent, input.DispatchKeyEventParams{Type: kind, Key: key})
	}
}

// click clicks the first element that a selector finds.
func (b *browser) click(selector string) {
	b.t.Helper()
	act(b, chromedp.Click(chromedp.CSS(selector)))
}

// focused is the accessible name of what has the focus.
func (b *browser) focused() string {
	b.t.Helper()
	return value[string](b, `(document.activeElement.ariaLabel ?? document.activeElement.textContent).trim()`)
}

// clean fails the test if the page asked anyone else, or complained.
func (b *browser) clean() {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, url := range b.requests {
		if !strings.HasPrefix(url, b.url+"/") {
			b.t.Errorf("the page asked for %s", url)
		}
	}
	for _, text := range b.errors {
		b.t.Errorf("the page complained: %s", text)
	}
}

// shot keeps a picture of the window.
func (b *browser) shot(name string) {
	b.t.Helper()
	b.keep(name+".png", act(b, chromedp.CaptureScreenshot()))
}

// keep writes a file under HEDDLE_ARTIFACTS if that is set, else where go test
// -artifacts keeps them.
func (b *browser) keep(name string, content []byte) {
	b.t.Helper()
	dir := os.Getenv("HEDDLE_ARTIFACTS")
	if dir == "" {
		dir = b.t.ArtifactDir()
	} else {
		dir = filepath.Join(dir, "page")
		must(b.t, os.MkdirAll(dir, 0o755))
	}
	path := filepath.Join(dir, name)
	must(b.t, os.WriteFile(path, content, 0o644))
	b.t.Logf("kept %s", path)
}

// size is the window's, in CSS pixels; narrow ones are phones.
func (b *browser) size(width, height int64) {
	b.t.Helper()
	call(b, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{
		Width: width, Height: height, DeviceScaleFactor: 1, Mobile: width < 600,
	})
}

// scheme is the system's theme: light or dark.
func (b *browser) scheme(name string) {
	b.t.Helper()
	call(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}},
	})
}
