package server

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/internal/notify"
)

// node is a kubelet's directory without sockets, in the test's own time.
type node struct {
	wake notify.Signal

	mu       sync.Mutex
	start    time.Time
	kubelet  identity
	there    bool
	listens  bool
	owner    string
	lives    []*fakeLife
	owners   []string
	attempts int
	// registrations holds, for each, the kubelet and when.
	registrations []taken
}

type taken struct {
	kubelet uint64
	at      time.Duration
}

type fakeLife struct {
	mu      sync.Mutex
	gone    bool
	streams int
	note    chan struct{}
	stopped bool
}

func (l *fakeLife) watch(by int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.streams += by
	close(l.note)
	l.note = make(chan struct{})
}

func newNode() *node { return &node{wake: notify.New(), start: time.Now()} }

// up makes a kubelet.sock that answers; its streams open and the directory
// tells.
func (n *node) up(silent bool) {
	n.mu.Lock()
	n.kubelet.inode++
	n.there, n.listens = true, true
	n.mu.Unlock()
	if !silent {
		n.wake.Notify()
	}
}

// kill ends the kubelet; its socket file stays.
func (n *node) kill() {
	n.mu.Lock()
	n.listens = false
	lives := n.lives
	n.mu.Unlock()
	for _, l := range lives {
		l.mu.Lock()
		open := l.streams
		l.mu.Unlock()
		l.watch(-open)
	}
}

func (n *node) first() *fakeLife {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.lives[0]
}

func (n *node) open(context.Context) (*life, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.attempts++
	if !n.listens {
		return nil, errors.New("refused")
	}
	f := &fakeLife{streams: 1, note: make(chan struct{})}
	n.lives = append(n.lives, f)
	n.registrations = append(n.registrations, taken{n.kubelet.inode, time.Since(n.start)})
	return &life{
		kubelet: n.kubelet,
		socket:  "s",
		intact: func() bool {
			f.mu.Lock()
			defer f.mu.Unlock()
			return !f.gone
		},
		streams: func() (int, <-chan struct{}) {
			f.mu.Lock()
			defer f.mu.Unlock()
			return f.streams, f.note
		},
		stop: func(context.Context) {
			f.mu.Lock()
			f.stopped = true
			open := f.streams
			f.mu.Unlock()
			f.watch(-open)
		},
	}, nil
}

func (n *node) supervisor() *supervisor {
	return &supervisor{
		look: func() (identity, bool, error) {
			n.mu.Lock()
			defer n.mu.Unlock()
			return n.kubelet, n.there, nil
		},
		open: n.open,
		claimed: func(context.Context) string {
			n.mu.Lock()
			defer n.mu.Unlock()
			return n.owner
		},
		wake: n.wake, log: slog.New(slog.DiscardHandler),
		registered: func(string) {}, failed: func(error) {},
		owner: func(owner string) {
			n.mu.Lock()
			defer n.mu.Unlock()
			if len(n.owners) == 0 || n.owners[len(n.owners)-1] != owner {
				n.owners = append(n.owners, owner)
			}
		},
	}
}

func TestSupervisorInTime(t *testing.T) {
	after := func(d time.Duration) { <-time.After(d) }
	tests := []struct {
		name string
		// silent drops every event, as where inotify is not to be had.
		silent bool
		story  func(n *node, silent bool)
		want   []taken
	}{
		{"kubelet is there", false, func(n *node, _ bool) { n.up(false) }, []taken{{1, 0}}},
		{"1 s late", false, func(n *node, s bool) { after(time.Second); n.up(s) }, []taken{{1, time.Second}}},
		{"7 s late", false, func(n *node, s bool) { after(7 * time.Second); n.up(s) }, []taken{{1, 7 * time.Second}}},
		{"60 s late", false, func(n *node, s bool) { after(time.Minute); n.up(s) }, []taken{{1, time.Minute}}},
		{"7 s late, no events", true, func(n *node, s bool) { after(7 * time.Second); n.up(s) }, []taken{{1, 10 * time.Second}}},
		{"restart", false, func(n *node, s bool) {
			n.up(s)
			after(time.Hour)
			n.kill()
			after(100 * time.Millisecond)
			n.up(s)
		}, []taken{{1, 0}, {2, time.Hour + 100*time.Millisecond}}},
		{"kubelet away for 10 minutes, its dead socket in place", false, func(n *node, s bool) {
			n.up(s)
			after(time.Hour)
			n.kill()
			after(10 * time.Minute)
			n.up(s)
		}, []taken{{1, 0}, {2, time.Hour + 10*time.Minute}}},
		{"socket bound a moment before it listens", false, func(n *node, _ bool) {
			n.mu.Lock()
			n.kubelet.inode, n.there = 1, true
			n.mu.Unlock()
			n.wake.Notify()
			after(2500 * time.Microsecond)
			n.mu.Lock()
			n.listens = true
			n.mu.Unlock()
			// Tries at 0, 1 and 3 ms.
		}, []taken{{1, 3 * time.Millisecond}}},
		{"the same after a long time of refusals", false, func(n *node, s bool) {
			n.up(s)
			after(time.Hour)
			n.kill()
			after(10 * time.Minute)
			n.mu.Lock()
			n.kubelet.inode++
			n.mu.Unlock()
			n.wake.Notify()
			after(2500 * time.Microsecond)
			n.mu.Lock()
			n.listens = true
			n.mu.Unlock()
		}, []taken{{1, 0}, {2, time.Hour + 10*time.Minute + 3*time.Millisecond}}},
		{"our socket deleted", false, func(n *node, s bool) {
			n.up(s)
			after(time.Hour)
			l := n.first()
			l.mu.Lock()
			l.gone = true
			l.mu.Unlock()
			n.wake.Notify()
		}, []taken{{1, 0}, {1, time.Hour}}},
		{"stream lost, kubelet runs", false, func(n *node, s bool) {
			n.up(s)
			after(time.Hour)
			n.first().watch(-1)
		}, []taken{{1, 0}, {1, time.Hour + time.Second}}},
		{"stream lost and found within a second", false, func(n *node, s bool) {
			n.up(s)
			after(time.Hour)
			n.first().watch(-1)
			after(900 * time.Millisecond)
			n.first().watch(1)
		}, []taken{{1, 0}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode()
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error, 1)
				go func() { done <- n.supervisor().run(ctx) }()
				tt.story(n, tt.silent)
				// Stale timers of the reference fire within 30 s.
				<-time.After(5 * time.Minute)
				synctest.Wait()
				if diff := cmp.Diff(tt.want, n.registrations, cmp.AllowUnexported(taken{})); diff != "" {
					t.Errorf("registrations (-want +got):\n%s", diff)
				}
				for i, l := range n.lives[:len(n.lives)-1] {
					if !l.stopped {
						t.Errorf("registration %d was replaced and still serves", i)
					}
				}
				if n.lives[len(n.lives)-1].stopped {
					t.Error("the last registration does not serve")
				}
				cancel()
				if err := <-done; err != nil {
					t.Error(err)
				}
				if !n.lives[len(n.lives)-1].stopped {
					t.Error("the last registration still serves after the end")
				}
			})
		})
	}
}

// A kubelet that ends each stream at once must not be asked in a tight loop.
func TestRegistrationsThatDoNotHoldBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode()
		n.up(false)
		s := n.supervisor()
		open := s.open
		s.open = func(ctx context.Context) (*life, error) {
			l, err := open(ctx)
			n.lives[len(n.lives)-1].watch(-1)
			return l, err
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.run(ctx) }()
		<-time.After(10 * time.Minute)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		// One second to notice and five to wait: about 100 in ten minutes.
		if got := len(n.registrations); got < 90 || got > 120 {
			t.Errorf("%d registrations in ten minutes", got)
		}
	})
}

func TestAForeignOwnerIsWaitedFor(t *testing.T) {
	const foreign = "device-plugins/nvidia-gpu.sock"
	set := func(n *node, owner string) {
		n.mu.Lock()
		n.owner = owner
		n.mu.Unlock()
	}
	tests := []struct {
		name     string
		takeover bool
		story    func(n *node)
		want     []taken
		owners   []string
	}{
		{"leaves for good", false, func(n *node) {
			set(n, foreign)
			n.up(false)
			<-time.After(time.Hour + time.Second)
			set(n, "")
		}, []taken{{1, time.Hour + 35*time.Second}}, []string{foreign, ""}},
		{"away for the moment of a kubelet's restart", false, func(n *node) {
			set(n, foreign)
			n.up(false)
			<-time.After(time.Hour + time.Second)
			set(n, "")
			<-time.After(20 * time.Second)
			set(n, foreign)
		}, nil, []string{foreign, "", foreign}},
		{"taken over", true, func(n *node) {
			set(n, foreign)
			n.up(false)
		}, []taken{{1, 0}}, []string{foreign}},
		{"comes later", false, func(n *node) {
			n.up(false)
			<-time.After(time.Hour)
			set(n, foreign)
		}, []taken{{1, 0}}, []string{"", foreign}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode()
				s := n.supervisor()
				s.takeover = tt.takeover
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error, 1)
				if tt.name == "comes later" {
					go func() { done <- s.run(ctx) }()
					tt.story(n)
				} else {
					go tt.story(n)
					synctest.Wait()
					go func() { done <- s.run(ctx) }()
				}
				<-time.After(2 * time.Hour)
				synctest.Wait()
				if diff := cmp.Diff(tt.want, n.registrations, cmp.AllowUnexported(taken{})); diff != "" {
					t.Errorf("registrations (-want +got):\n%s", diff)
				}
				if diff := cmp.Diff(tt.owners, n.owners); diff != "" {
					t.Errorf("owners that were named (-want +got):\n%s", diff)
				}
				cancel()
				if err := <-done; err != nil {
					t.Error(err)
				}
			})
		})
	}
}
