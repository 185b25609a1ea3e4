package master

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/master/view"
)

// gangs is who is in which gang.
type gangs struct {
	// members are by the key of their pod.
	members map[types.NamespacedName]map[string]*gang.Member
	// touched are gangs whose members are not those of the draft.
	touched map[types.NamespacedName]bool
	draft   view.GangDraft
}

func newGangs() *gangs {
	return &gangs{
		members: map[types.NamespacedName]map[string]*gang.Member{}, touched: map[types.NamespacedName]bool{},
	}
}

// move takes a pod out of the gang that it was in and puts it where it is; nil
// is in none.
func (g *gangs) move(pod string, was, now *gang.Member) {
	if was != nil && (now == nil || was.Gang != now.Gang) {
		delete(g.members[was.Gang], pod)
		g.touched[was.Gang] = true
	}
	if now == nil {
		return
	}
	if g.members[now.Gang] == nil {
		g.members[now.Gang] = map[string]*gang.Member{}
	}
	g.members[now.Gang][pod] = now
	g.touched[now.Gang] = true
}

// settle brings the draft up to date, once for all moves; true if there was any.
func (g *gangs) settle() bool {
	if len(g.touched) == 0 {
		return false
	}
	for key := range g.touched {
		if len(g.members[key]) == 0 {
			delete(g.members, key)
			g.draft.Delete(key.String())
			continue
		}
		g.draft.Set(key.String(), slices.Collect(maps.Values(g.members[key])))
	}
	clear(g.touched)
	return true
}
