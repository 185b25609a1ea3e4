package server

import (
	"cmp"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
)

// node is a kubelet and its directory, in the test's own time.
type node struct {
	start, now time.Time
	kubelet    identity
	there      bool
	listens    bool
	// intact and streams are of the last registration; brief: the kubelet ends
	// each stream at once.
	intact, brief bool
	// changed: the next registration has other options.
	changed bool
	streams int
	owner   string

	registrations []taken
	lost          []string
}

// taken is a registration: which kubelet took it, and when.
type taken struct {
	kubelet uint64
	at      time.Duration
}

// happening is something that happens at a time.
type happening struct {
	at time.Duration
	do func(n *node)
	// silent: there is no event, as without inotify.
	silent bool
}

func (n *node) up() {
	n.kubelet.inode++
	n.there, n.listens = true, true
}

// kill ends the kubelet; its socket file stays.
func (n *node) kill() { n.listens, n.streams = false, 0 }

// run decides until the end, at every event and when a decision asks for it.
func (n *node) run(t *testing.T, s *supervisor, end time.Duration, story ...happening) {
	t.Helper()
	n.start = time.Unix(1_700_000_000, 0)
	n.now = n.start
	due := n.now
	ownerAt := n.now
	owner := n.owner
	for decisions := 0; n.now.Sub(n.start) <= end; decisions++ {
		if decisions > 1_000_000 {
			t.Fatal("it never waits")
		}
		for len(story) > 0 && !n.now.Before(n.start.Add(story[0].at)) {
			story[0].do(n)
			if !story[0].silent {
				due = n.now
			}
			story = story[1:]
		}
		if !n.now.Before(ownerAt) { // As watchOwner asks.
			owner, ownerAt = n.owner, n.now.Add(poll)
			if s.registered {
				ownerAt = n.now.Add(vacant)
			}
			due = n.now
		}
		if !n.now.Before(due) {
			due = n.now.Add(n.step(s, owner))
			continue
		}
		next := slices.MinFunc([]time.Time{due, ownerAt}, time.Time.Compare)
		if len(story) > 0 {
			next = slices.MinFunc([]time.Time{next, n.start.Add(story[0].at)}, time.Time.Compare)
		}
		n.now = next
	}
}

// step decides once, and registers if that was decided.
func (n *node) step(s *supervisor, owner string) (wait time.Duration) {
	o := observation{
		now: n.now, kubelet: n.kubelet, there: n.there, owner: owner, asked: true, intact: n.intact, streams: n.streams,
		changed: n.changed,
	}
	register, lost, wait := s.decide(&o)
	if lost != "" {
		n.lost = append(n.lost, lost)
	}
	switch {
	case !register:
		return wait
	case !n.listens:
		s.rejected(n.kubelet, n.now)
	default:
		s.accepted(n.kubelet, n.now)
		n.intact, n.changed, n.streams = true, false, 1
		if n.brief {
			n.streams = 0
		}
		n.registrations = append(n.registrations, taken{n.kubelet.inode, n.now.Sub(n.start)})
	}
	return 0
}

func TestSupervisorInTime(t *testing.T) {
	const ms, hour = time.Millisecond, time.Hour
	up := func(at time.Duration) happening { return happening{at: at, do: (*node).up} }
	kill := func(at time.Duration) happening { return happening{at: at, do: (*node).kill} }
	listen := func(n *node) { n.listens = true }
	tests := []struct {
		name  string
		story []happening
		want  []taken
	}{
		{"kubelet is there", []happening{up(0)}, []taken{{1, 0}}},
		{"1 s late", []happening{up(time.Second)}, []taken{{1, time.Second}}},
		{"60 s late", []happening{up(time.Minute)}, []taken{{1, time.Minute}}},
		{"7 s late, no events", []happening{{at: 7 * time.Second, do: (*node).up, silent: true}}, []taken{{1, 10 * time.Second}}},
		{"restart", []happening{up(0), kill(hour), up(hour + 100*ms)}, []taken{{1, 0}, {2, hour + 100*ms}}},
		{
			"kubelet away for 10 minutes, its dead socket in place",
			[]happening{up(0), kill(hour), up(hour + 10*time.Minute)},
			[]taken{{1, 0}, {2, hour + 10*time.Minute}},
		},
		{"socket bound a moment before it listens", []happening{
			{at: 0, do: func(n *node) { n.kubelet.inode, n.there = 1, true }},
			{at: 2500 * time.Microsecond, do: listen, silent: true}, // Tries at 0, 1 and 3 ms.
		}, []taken{{1, 3 * ms}}},
		{"the same after a long time of rejections", []happening{
			up(0), kill(hour),
			{at: hour + 10*time.Minute, do: func(n *node) { n.kubelet.inode++ }},
			{at: hour + 10*time.Minute + 2500*time.Microsecond, do: listen, silent: true},
		}, []taken{{1, 0}, {2, hour + 10*time.Minute + 3*ms}}},
		{
			"own socket deleted",
			[]happening{up(0), {at: hour, do: func(n *node) { n.intact = false }}},
			[]taken{{1, 0}, {1, hour}},
		},
		{
			"the options change twice in a moment",
			[]happening{
				up(0),
				{at: hour, do: func(n *node) { n.changed = true }},
				{at: hour + 10*ms, do: func(n *node) { n.changed = true }},
			},
			[]taken{{1, 0}, {1, hour}, {1, hour + 10*ms}},
		},
		{
			"stream lost, kubelet runs",
			[]happening{up(0), {at: hour, do: func(n *node) { n.streams = 0 }}},
			[]taken{{1, 0}, {1, hour + time.Second}},
		},
		{"stream lost and found within a second", []happening{
			up(0), {at: hour, do: func(n *node) { n.streams = 0 }}, {at: hour + 900*ms, do: func(n *node) { n.streams = 1 }},
		}, []taken{{1, 0}}},
		{"kubelet.sock deleted, kubelet runs", []happening{up(0), {at: hour, do: func(n *node) { n.there = false }}}, []taken{{1, 0}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			n := &node{}
			n.run(t, &supervisor{}, 2*hour, tt.story...)
			if diff := gocmp.Diff(tt.want, n.registrations, gocmp.AllowUnexported(taken{})); diff != "" {
				t.Errorf("registrations (-want +got):\n%s", diff)
			}
			if len(n.lost) != len(n.registrations)-1 {
				t.Errorf("lost %q", n.lost)
			}
		})
	}
}

// A kubelet that ends each stream at once must not be asked in a tight loop.
func TestRegistrationsThatDoNotHoldBackOff(t *testing.T) {
	n := &node{brief: true}
	n.run(t, &supervisor{}, 10*time.Minute, happening{do: (*node).up})
	// One second to notice and five to wait: about 100 in ten minutes.
	if got := len(n.registrations); got < 90 || got > 120 {
		t.Errorf("%d registrations in ten minutes", got)
	}
}

func TestAConflictingPluginIsWaitedFor(t *testing.T) {
	const foreign = "another device plugin"
	set := func(at time.Duration, owner string) happening {
		return happening{at: at, do: func(n *node) { n.owner = owner }, silent: true}
	}
	for _, tt := range []struct {
		name  string
		story []happening
		want  []taken
	}{
		{"leaves for good", []happening{set(0, foreign), set(time.Hour+time.Second, "")}, []taken{{1, time.Hour + 35*time.Second}}},
		{"away for the moment of a kubelet's restart", []happening{
			set(0, foreign), set(time.Hour+time.Second, ""), set(time.Hour+21*time.Second, foreign),
		}, nil},
		{"comes later", []happening{set(time.Hour, foreign)}, []taken{{1, 0}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := &node{}
			story := slices.SortedStableFunc(slices.Values(append(tt.story, happening{do: (*node).up})),
				func(a, b happening) int { return cmp.Compare(a.at, b.at) })
			n.run(t, &supervisor{}, 2*time.Hour, story...)
			if diff := gocmp.Diff(tt.want, n.registrations, gocmp.AllowUnexported(taken{})); diff != "" {
				t.Errorf("registrations (-want +got):\n%s", diff)
			}
		})
	}
}
