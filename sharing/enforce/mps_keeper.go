package enforce

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// What a Keeper is asked, by HTTP on a socket that only root can open.
const (
	pathDaemons = "/v1/daemons"
	pathRetain  = "/v1/daemons/retain"
	pathSignal  = "/v1/daemons/signal"
	pathCheck   = "/v1/check"
)

// maxAsked bounds a request, in bytes.
const maxAsked = 1 << 16

// asked is the body of every request; each uses some of the fields.
type asked struct {
	keptProgram
	// Plugin is the process that asks, by a name of its own.
	Plugin string `json:"plugin,omitempty"`
	// Attach wants a daemon that runs already.
	Attach bool `json:"attach,omitempty"`
	// Signal is for the daemon of GPU and its servers.
	Signal syscall.Signal `json:"signal,omitempty"`
	// GPUs are those whose daemons go on.
	GPUs []string `json:"gpus,omitempty"`
}

// keptProgram is a [program] without what the Keeper knows itself.
type keptProgram struct {
	GPU       string `json:"gpu"`
	Path      string `json:"path,omitempty"`
	Pipe      string `json:"pipe,omitempty"`
	Log       string `json:"log,omitempty"`
	MultiUser bool   `json:"multiUser,omitempty"`
}

// life is a line of the answer about a daemon: one when it has started, one when it
// has ended.
type life struct {
	Ended string `json:"ended,omitempty"`
}

// Keeper runs control daemons for a heddle-device-plugin in another process, so that
// CUDA programs go on while the plugin is updated.
type Keeper struct {
	// StateDir and Root are the plugin's StateDir and MPSRoot.
	StateDir, Root string
	Log            *slog.Logger

	mu   sync.Mutex // guards kept
	kept map[string]*keptDaemon
}

// keptDaemon is a daemon that runs.
type keptDaemon struct {
	program keptProgram
	child   *child
	// plugin is the process that had it last. Its connections are no measure: their end
	// can be noticed after the next process's first request.
	plugin string
}

// KeeperSocket is a Keeper's socket in the plugin's state directory.
func KeeperSocket(stateDir string) string { return filepath.Join(stateDir, "mps", "keeper.sock") }

// Run serves on a listener until ctx ends, and then ends all daemons.
func (k *Keeper) Run(ctx context.Context, listener net.Listener) error {
	k.kept = map[string]*keptDaemon{}
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+pathDaemons, k.serveDaemon)
	mux.HandleFunc("POST "+pathRetain, k.serveRetain)
	mux.HandleFunc("POST "+pathSignal, k.serveSignal)
	// It takes no lock: a probe that fails ends every CUDA program with a share, and a
	// daemon that starts slowly is no reason.
	mux.HandleFunc("POST "+pathCheck, func(http.ResponseWriter, *http.Request) {})
	server := &http.Server{
		Handler: mux, ReadHeaderTimeout: 5 * time.Second, MaxHeaderBytes: 1 << 14,
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve %s: %w", listener.Addr(), err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, d := range k.kept {
		d.end()
	}
	return nil
}

// decode reads a request, and answers one that is wrong.
func decode(w http.ResponseWriter, r *http.Request) (a asked, ok bool) {
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxAsked))
	if err := d.Decode(&a); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return a, false
	}
	return a, true
}

// check rejects what is no control daemon of the plugin's.
func (k *Keeper) check(p *keptProgram) error {
	own := filepath.Join(k.StateDir, "mps", p.GPU)
	switch {
	case p.GPU == "" || p.GPU != filepath.Base(p.GPU) || strings.HasPrefix(p.GPU, "."):
		return fmt.Errorf("%q is no GPU", p.GPU)
	case !filepath.IsAbs(p.Path) || filepath.Base(p.Path) != "nvidia-cuda-mps-control":
		return fmt.Errorf("%q is no nvidia-cuda-mps-control", p.Path)
	case filepath.Dir(p.Pipe) != own || filepath.Dir(p.Log) != own:
		return fmt.Errorf("%q and %q are not in %s", p.Pipe, p.Log, own)
	}
	return nil
}

// serveDaemon answers with a line when a daemon runs, and another when it has ended. It
// runs on when the caller goes.
func (k *Keeper) serveDaemon(w http.ResponseWriter, r *http.Request) {
	a, ok := decode(w, r)
	if !ok {
		return
	}
	if err := k.check(&a.keptProgram); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	d, err := k.obtain(r.Context(), &a)
	switch {
	case err != nil:
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	case d == nil:
		http.Error(w, "no such daemon runs", http.StatusNotFound)
		return
	}
	defer k.release(d)
	lines := json.NewEncoder(w)
	if lines.Encode(life{}) != nil || http.NewResponseController(w).Flush() != nil {
		return
	}
	select {
	case <-d.child.done:
		_ = lines.Encode(life{Ended: orNil(d.child.err).Error()}) // A caller that is gone needs no answer.
	case <-r.Context().Done():
	}
}

// obtain finds or starts a daemon; nil if none runs that could be attached.
func (k *Keeper) obtain(ctx context.Context, a *asked) (*keptDaemon, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	d := k.kept[a.GPU]
	same := d != nil && d.program == a.keptProgram && d.runs()
	switch {
	case same:
		d.plugin = a.Plugin
		return d, nil
	case a.Attach:
		return nil, nil //nolint:nilnil // None is an answer here.
	case d != nil:
		d.end()
	}
	p := program{root: k.Root, gpu: a.GPU, path: a.Path, pipe: a.Pipe, log: a.Log, multiUser: a.MultiUser}
	c, err := p.start(ctx)
	if err != nil {
		return nil, err
	}
	k.Log.Info("MPS daemon started", "gpu", a.GPU, "pid", c.pid)
	d = &keptDaemon{program: a.keptProgram, child: c, plugin: a.Plugin}
	k.kept[a.GPU] = d
	return d, nil
}

func (k *Keeper) release(d *keptDaemon) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !d.runs() && k.kept[d.program.GPU] == d {
		k.Log.Info("MPS daemon ended", "gpu", d.program.GPU, "err", d.child.err)
		delete(k.kept, d.program.GPU)
	}
}

func (k *Keeper) serveSignal(w http.ResponseWriter, r *http.Request) {
	a, ok := decode(w, r)
	if !ok {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if d := k.kept[a.GPU]; d != nil {
		d.child.signal(a.Signal)
	}
}

// serveRetain ends the daemons that an earlier plugin had and this one has no
// consumers for.
func (k *Keeper) serveRetain(w http.ResponseWriter, r *http.Request) {
	a, ok := decode(w, r)
	if !ok {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for gpu, d := range k.kept {
		if d.plugin != a.Plugin && !slices.Contains(a.GPUs, gpu) {
			d.end()
			delete(k.kept, gpu)
		}
	}
	w.Header().Set("Content-Length", strconv.Itoa(0))
}

func (d *keptDaemon) runs() bool {
	select {
	case <-d.child.done:
		return false
	default:
		return true
	}
}

// end ends a daemon and its servers by signals.
func (d *keptDaemon) end() {
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		d.child.signal(s)
		select {
		case <-d.child.done:
			return
		case <-time.After(usualPace().stop):
		}
	}
}
