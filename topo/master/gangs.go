package master

import (
	"strings"

	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/master/snapshot"
)

// gangs is who is in which gang.
type gangs struct {
	draft snapshot.GangDraft
	// moved are members by gang and name that are not yet as the draft has
	// them; nil is gone.
	moved map[string]map[string]*gang.Member
}

// move takes a pod, by its key, out of the gang that it was in and puts it where
// it is now; nil is in none.
func (g *gangs) move(pod string, was, now *gang.Member) {
	_, name, _ := strings.Cut(pod, "/")
	if was != nil && (now == nil || was.Gang != now.Gang) {
		g.note(was.Gang, name, nil)
	}
	if now != nil {
		now.Name = name // One copy of it is enough.
		g.note(now.Gang, name, now)
	}
}

func (g *gangs) note(key, name string, m *gang.Member) {
	if g.moved == nil {
		g.moved = map[string]map[string]*gang.Member{}
	}
	if g.moved[key] == nil {
		g.moved[key] = map[string]*gang.Member{}
	}
	g.moved[key][name] = m
}

// settle brings the draft up to date, once for all moves; true if there was any.
func (g *gangs) settle() bool {
	for key, moved := range g.moved {
		was, _ := g.draft.Of(key)
		members := make([]*gang.Member, 0, len(was)+len(moved))
		for _, m := range was {
			if _, ok := moved[m.Name]; !ok {
				members = append(members, m)
			}
		}
		for _, m := range moved {
			if m != nil {
				members = append(members, m)
			}
		}
		if len(members) == 0 {
			g.draft.Delete(key)
		} else {
			g.draft.Set(key, members)
		}
	}
	some := g.moved != nil
	g.moved = nil // After the first list there are few.
	return some
}
