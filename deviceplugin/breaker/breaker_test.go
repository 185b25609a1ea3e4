package breaker

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/types"
)

const first = time.Minute

// node is a node at a time, with its pods.
type node struct {
	State
	now  time.Time
	pods []Pod
	full string // Why the fleet lets no other node be withdrawn.
	busy bool   // Unsettled.
}

// look lets time pass, and the node see its pods.
func (n *node) look(after time.Duration) {
	n.now = n.now.Add(after)
	if n.State = n.See(n.now, n.pods, !n.busy, first); n.Due(n.now, first) {
		n.State = n.Withdraw(n.now, n.full)
	}
	// What the next process reads is the same.
	text, err := json.Marshal(n.State)
	var read State
	if err == nil {
		err = json.Unmarshal(text, &read)
	}
	if err != nil || !cmp.Equal(n.State, read, cmpopts.EquateEmpty()) {
		panic(fmt.Sprintf("%v: %s", err, cmp.Diff(n.State, read)))
	}
}

// pod adds one that the kubelet has admitted now, as the API server has the time.
func (n *node) pod(change func(*Pod)) {
	p := Pod{UID: types.UID(fmt.Sprint("uid-", len(n.pods))), Admitted: n.now.Truncate(time.Second)}
	p.Name = "default/" + string(p.UID)
	change(&p)
	n.pods = append(n.pods, p)
}

func (n *node) reject() { n.pod(func(p *Pod) { p.Failed, p.Rejected = "Allocate failed", true }) }
func (n *node) break1() { n.pod(func(p *Pod) { p.Failed = "StartError: hook" }) }
func (n *node) wait()   { n.pod(func(p *Pod) { p.Waits = true }) }
func (n *node) start()  { n.pod(func(p *Pod) { p.Started = p.Admitted }) }

// shows describes the node in a few words.
func (n *node) shows() string {
	out := fmt.Sprintf("%s %d", n.Phase, min(n.Failed, Threshold))
	if n.Phase == Withdrawn || n.Kept != "" {
		out += " for " + n.Until(first).Sub(n.now).String()
	}
	if n.Probed {
		out += " probed"
	}
	return strings.TrimSpace(out + " " + n.Kept)
}

func TestStates(t *testing.T) {
	second := time.Second
	trip := func(n *node) {
		for range Threshold {
			n.reject()
			n.look(second)
		}
	}
	for _, tt := range []struct {
		name string
		do   func(*node)
		want string
	}{
		{"nothing", func(n *node) { n.look(second) }, "0"},
		{"two pods", func(n *node) { n.reject(); n.look(second); n.break1(); n.look(second) }, "2"},
		{"three pods", trip, "withdrawn 3 for 1m0s"},
		{"three at once", func(n *node) { n.reject(); n.reject(); n.break1(); n.look(second) }, "withdrawn 3 for 1m0s"},
		{"one pod, seen three times", func(n *node) { n.break1(); n.look(second); n.look(second); n.look(second) }, "1"},
		{"a pod starts between", func(n *node) {
			n.reject()
			n.reject()
			n.look(second)
			n.start()
			n.reject()
			n.look(second)
		}, "1"},
		{"a pod that was there before starts again", func(n *node) {
			n.start()
			n.reject()
			n.look(second)
			n.reject()
			n.look(second)
			n.pods[0].Started = n.now.Add(second)
			n.reject()
			n.look(second)
		}, "withdrawn 3 for 1m0s"},
		{"one of those that hang starts", func(n *node) {
			n.break1()
			n.break1()
			n.break1()
			n.look(second)
			n.pods[1].Failed, n.pods[1].Started = "", n.now.Add(second)
			n.look(second)
			n.look(time.Hour)
		}, "0"},
		{"a pod arrives too late", func(n *node) { trip(n); n.reject(); n.look(second) }, "withdrawn 3 for 59s"},
		{"time for a probe", func(n *node) { trip(n); n.look(first) }, "probing 3"},
		{"a pod that failed before the wait ended", func(n *node) { trip(n); n.reject(); n.look(first) }, "probing 3"},
		{"the probe is here", func(n *node) { trip(n); n.look(first); n.wait(); n.look(second) }, "probing 3 probed"},
		{"a pod from before the wait ended", func(n *node) { n.wait(); n.look(2 * second); trip(n); n.look(first) }, "probing 3"},
		{"the probe is deleted", func(n *node) {
			trip(n)
			n.look(first)
			n.wait()
			n.look(second)
			n.pods = n.pods[:Threshold]
			n.look(second)
		}, "probing 3"},
		{"the probe starts", func(n *node) { trip(n); n.look(first); n.start(); n.look(second) }, "0"},
		{"the probe fails", func(n *node) { trip(n); n.look(first); n.reject(); n.look(second) }, "withdrawn 3 for 2m0s"},
		{"probes fail for a day", func(n *node) {
			trip(n)
			for range 24 {
				n.look(time.Hour)
				n.break1()
				n.look(second)
			}
		}, "withdrawn 3 for 1h0m0s"},
		{"the wait is short again after a success", func(n *node) {
			trip(n)
			n.look(first)
			n.start()
			n.look(second)
			trip(n)
		}, "withdrawn 3 for 1m0s"},
		{"the fleet is full", func(n *node) { n.full = "full"; trip(n) }, "3 for 1m0s full"},
		{"it asks again later", func(n *node) { n.full = "full"; trip(n); n.look(first) }, "3 for 2m0s full"},
		{"it is not full then", func(n *node) { n.full = "full"; trip(n); n.full = ""; n.look(first) }, "withdrawn 3 for 2m0s"},
		{"the probe fails, and others are withdrawn", func(n *node) {
			trip(n)
			n.look(first)
			n.reject()
			n.full = "full"
			n.look(second)
		}, "3 for 2m0s full"},
		{"in service, and a pod starts", func(n *node) { n.full = "full"; trip(n); n.start(); n.look(second) }, "0"},
		{"the wait is configured shorter", func(n *node) {
			trip(n)
			n.now = n.now.Add(second)
			n.State = n.See(n.now, nil, true, second)
		}, "probing 3"},
		{"pods while the daemon was away", func(n *node) { n.busy = true; trip(n); n.busy = false; n.look(second) }, "0"},
		{"containers that still hang then", func(n *node) {
			n.busy = true
			n.break1()
			n.break1()
			n.break1()
			n.look(second)
			n.busy = false
			n.look(second)
		}, "withdrawn 3 for 1m0s"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := &node{now: time.Date(2026, 11, 30, 10, 0, 0, 5e8, time.UTC)}
			tt.do(n)
			if got := n.shows(); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
			if (n.String() != "") != n.Failing() {
				t.Errorf("failing is %t, described as %q", n.Failing(), n)
			}
			if n.pods = nil; len(n.See(n.now, nil, true, first).Counted) > 0 {
				t.Error("pods that are gone are kept")
			}
		})
	}
}
