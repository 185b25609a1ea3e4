package enforce

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const gib = 1 << 30

// use is a container's on a GPU of 80 GiB.
func use(pod string, priority int32, shareGiB, usedGiB int64) Use {
	return Use{
		Namespace: "team", Pod: pod, UID: "uid-" + pod, Container: "main", GPU: "GPU-a", Index: 3, Total: 80 * gib,
		Share: shareGiB * gib, Used: usedGiB * gib, SM: Unknown, Priority: priority, Evictable: true,
	}
}

// actions lists what the round does at each time, half a minute after the last, as words.
func actions(times ...[]Use) [][]string {
	var timings map[Subject]Timing
	var all [][]string
	for i, uses := range times {
		var found []Action
		found, timings = CheckUses(time.Unix(0, 0).Add(time.Duration(i)*excessFor), uses, timings)
		words := []string{}
		for _, v := range found {
			what := "warn "
			if v.Evict {
				what = "evict "
			}
			words = append(words, what+v.Pod+" "+string(v.Excess))
		}
		all = append(all, words)
	}
	return all
}

func TestCheckUses(t *testing.T) {
	uses := func(all ...Use) []Use { return all }
	unknown := use("a", 0, 4, 6)
	unknown.Used = Unknown
	other := use("a", 0, 4, 6)
	other.Evictable = false
	busy := func(sm int64) Use {
		u := use("a", 0, 4, 2)
		u.Percent, u.SM = 30, sm
		return u
	}
	within, over := uses(use("a", 0, 4, 4)), uses(use("a", 0, 4, 6))
	none := []string{}
	for _, tt := range []struct {
		name  string
		times [][]Use
		want  [][]string
	}{
		{"within its share", [][]Use{within, within, within}, [][]string{none, none, none}},
		{"over it", [][]Use{over, over, over, over, over}, [][]string{none, {"warn a memory"}, none, {"evict a memory"}, {"evict a memory"}}},
		{"over it, with a rest", [][]Use{over, within, over, over, within, over}, [][]string{none, none, none, {"warn a memory"}, none, none}},
		{
			"not known for a while, and over it all the time",
			[][]Use{over, uses(unknown), over, uses(unknown), uses(unknown), over},
			[][]string{none, none, {"warn a memory"}, none, none, {"evict a memory"}},
		},
		{"never known", [][]Use{uses(unknown), uses(unknown), uses(unknown)}, [][]string{none, none, none}},
		{"of another enforcer", [][]Use{uses(other), uses(other)}, [][]string{none, none}},
		{
			"compute is only reported, and once",
			[][]Use{uses(busy(40)), uses(busy(40)), uses(busy(40)), uses(busy(40)), uses(busy(30))},
			[][]string{none, {"warn a compute"}, none, none, none},
		},
	} {
		if diff := cmp.Diff(tt.want, actions(tt.times...)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

// TestFullGPU: on a full GPU whose shares are more than its memory, one container at a
// time makes room for one of a higher priority.
func TestFullGPU(t *testing.T) {
	static := use("static", 0, 40, 40)
	static.Evictable = false
	leaves := use("leaves", 5, 40, 30)
	leaves.Terminating = true
	unknown := use("low", 0, 40, 0)
	unknown.Used = Unknown
	for _, tt := range []struct {
		name string
		uses []Use
		want []string
	}{
		{"room for all", []Use{use("low", 0, 40, 30), use("high", 9, 60, 40)}, nil},
		{"full, of one priority", []Use{use("one", 0, 60, 60), use("two", 0, 40, 18)}, nil},
		{"full, and the higher one has its share", []Use{use("low", 0, 60, 40), use("high", 9, 40, 40)}, nil},
		{"full, and the higher one has not", []Use{use("low", 0, 40, 40), use("high", 9, 60, 38)}, []string{"low full"}},
		{
			"the lowest priority first, whatever it has",
			[]Use{use("middle", 5, 40, 38), use("low", 0, 30, 3), use("high", 9, 60, 38)},
			[]string{"low full"},
		},
		{
			"of one priority, the one that has the most of its share",
			[]Use{use("one", 0, 40, 30), use("two", 0, 40, 39), use("high", 9, 20, 8)},
			[]string{"two full"},
		},
		{"one over its share, before a lower priority", []Use{use("low", 0, 50, 38), use("over", 5, 20, 22), use("high", 9, 40, 18)}, []string{"over memory", "over full"}},
		{"one leaves already", []Use{leaves, use("low", 0, 40, 40), use("high", 9, 60, 8)}, nil},
		{"a static pod stays", []Use{static, use("high", 9, 60, 38)}, nil},
		{"one that uses nothing would make no room", []Use{use("idle", 0, 40, 0), use("middle", 5, 40, 40), use("high", 9, 60, 38)}, []string{"middle full"}},
		{"what is not known is not evicted", []Use{unknown, use("high", 9, 79, 78)}, nil},
		{"not over-committed", []Use{use("low", 0, 30, 30), use("high", 9, 50, 47)}, nil},
	} {
		var words []string
		for _, word := range actions(tt.uses, tt.uses, tt.uses, tt.uses)[3] {
			words = append(words, strings.TrimPrefix(word, "evict "))
		}
		if diff := cmp.Diff(tt.want, words); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

// Nothing is done about compute over a share but to report it.
func TestMessageOfAnExcess(t *testing.T) {
	busy := use("b", 0, 4, 0)
	busy.Percent, busy.SM = 30, 80
	uses := []Use{use("a", -5, 40, 76), busy, use("high", 7, 50, 1)}
	_, timings := CheckUses(time.Unix(0, 0), uses, nil)
	got, _ := CheckUses(time.Unix(30, 0), uses, timings)
	want := []string{
		"container main has 77824 MiB of GPU 3, and its share is 40960 MiB; the pod is evicted if that is so in 1m0s",
		"container main has 77824 MiB of GPU 3, which is full, and a container of priority 7 has not all of its share; " +
			"its own is -5; the pod is evicted if that is so in 1m0s",
		"container main uses GPU 3 for 80 % of the time, and its share is 30 %; nothing limits it (sgpu.enforce.compute)",
	}
	var messages []string
	for _, v := range got {
		messages = append(messages, v.Message)
	}
	if diff := cmp.Diff(want, messages); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
