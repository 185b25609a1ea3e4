package enforce

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"

	"github.com/heddle-dev/heddle/api/wellknown"
)

// remote is the launcher of daemons that a [Keeper] runs.
type remote struct {
	http http.Client
	// plugin is this process's name.
	plugin string
}

func newRemote(socket string) *remote {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}
	return &remote{http.Client{Transport: &http.Transport{DialContext: dial, MaxIdleConns: 1}}, rand.Text()}
}

// CheckKeeper is the error of a [Keeper] that does not answer at its socket.
func CheckKeeper(ctx context.Context, socket string, timeout time.Duration) error {
	r := newRemote(socket)
	defer r.http.CloseIdleConnections()
	return r.do(ctx, pathCheck, &asked{}, timeout)
}

func (*remote) outlives() bool { return true }

// post asks the Keeper for something. The answer is the caller's to close.
func (r *remote) post(ctx context.Context, path string, a *asked) (*http.Response, error) {
	a.Plugin = r.plugin
	body, err := json.Marshal(a)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://keeper"+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	answer, err := r.http.Do(request)
	if err != nil {
		return nil, fmt.Errorf("heddle-mps does not answer: %w", err)
	}
	return answer, nil
}

// do is post of what has no answer.
func (r *remote) do(ctx context.Context, path string, a *asked, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	answer, err := r.post(ctx, path, a)
	if err != nil {
		return err
	}
	return errors.Join(statusOf(answer), answer.Body.Close())
}

// statusOf is the error of an answer.
func statusOf(answer *http.Response) error {
	if answer.StatusCode == http.StatusOK {
		return nil
	}
	text, _ := io.ReadAll(io.LimitReader(answer.Body, maxAsked))
	return fmt.Errorf("heddle-mps: %s", wellknown.ClipTo(strings.TrimSpace(string(text)), 200))
}

func (r *remote) attach(ctx context.Context, p *program) (c process, found bool, err error) {
	d, err := r.open(ctx, p, true)
	if d == nil || err != nil {
		return nil, false, err
	}
	return d, true, nil
}

func (r *remote) start(ctx context.Context, p *program) (process, error) {
	d, err := r.open(ctx, p, false)
	if err == nil && d == nil {
		err = errEnded
	}
	if err != nil {
		return nil, err
	}
	return d, nil
}

// errLate is the error of a daemon that came when it was not waited for any more.
var errLate = errors.New("heddle-mps did not answer in time")

// open asks for a daemon; nil if there is none to attach. The answer lasts as long as
// the daemon.
func (r *remote) open(ctx context.Context, p *program, attach bool) (*remoteDaemon, error) {
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	opened := context.AfterFunc(ctx, cancel)
	late := time.AfterFunc(p.answer, cancel)
	d, err := r.first(own, &asked{Attach: attach, keptProgram: keptProgram{
		GPU: p.gpu, Path: p.path, Pipe: p.pipe, Log: p.log, MultiUser: p.multiUser,
	}})
	if inTime := opened(); !late.Stop() || !inTime {
		cancel()
		return nil, errors.Join(errLate, err)
	}
	if d == nil {
		cancel()
		return nil, err
	}
	d.remote, d.gpu, d.detached = r, p.gpu, cancel
	go d.wait()
	return d, nil
}

// first reads the first line of an answer.
func (r *remote) first(ctx context.Context, a *asked) (*remoteDaemon, error) {
	answer, err := r.post(ctx, pathDaemons, a)
	if err != nil {
		return nil, err
	}
	lines := json.NewDecoder(answer.Body)
	if a.Attach && answer.StatusCode == http.StatusNotFound {
		return nil, answer.Body.Close()
	}
	if err = statusOf(answer); err == nil {
		err = lines.Decode(&life{})
	}
	if err != nil {
		return nil, errors.Join(err, answer.Body.Close())
	}
	return &remoteDaemon{body: answer.Body, lines: lines, done: make(chan struct{})}, nil
}

func (r *remote) retain(ctx context.Context, gpus []string) error {
	return r.do(ctx, pathRetain, &asked{GPUs: gpus}, time.Minute)
}

// remoteDaemon is a daemon that a Keeper runs.
type remoteDaemon struct {
	remote *remote
	gpu    string
	body   io.Closer
	lines  *json.Decoder
	// detached ends the connection.
	detached context.CancelFunc
	done     chan struct{}
	err      error
}

func (d *remoteDaemon) wait() {
	defer close(d.done)
	defer d.detached()
	var end life
	if err := d.lines.Decode(&end); err != nil {
		d.err = fmt.Errorf("heddle-mps is gone, and its daemons with it: %w", err)
	} else {
		d.err = errors.New(end.Ended)
	}
	_ = d.body.Close() // It was read to its end.
}

func (d *remoteDaemon) ended() <-chan struct{} { return d.done }

func (d *remoteDaemon) fault() error { return d.err }

// signal's failure shows in that the daemon does not end.
func (d *remoteDaemon) signal(s syscall.Signal) {
	_ = d.remote.do(context.Background(), pathSignal, &asked{keptProgram: keptProgram{GPU: d.gpu}, Signal: s}, time.Second)
}

func (d *remoteDaemon) detach() {
	d.detached()
	<-d.done
}
