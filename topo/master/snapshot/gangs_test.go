package snapshot_test

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/test/fabrics"
	"github.com/heddle-dev/heddle/topo/fabric"
	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/master/informers"
	"github.com/heddle-dev/heddle/topo/master/snapshot"
)

// fleet is a fat tree of n nodes with a pod each, in gangs of a size.
func fleet(tb testing.TB, n, size int) snapshot.Snapshot {
	tb.Helper()
	levels := fabric.Preset(fabric.ModeAuto, 0)
	m := fabric.New(levels)
	nodes, gangs := map[string]*informers.NodeState{}, map[string]*informers.Gang{}
	f := fabrics.New(fabrics.Plan{Sizes: fabrics.Even(n, 32), Rails: 8, Pod: 16})
	byGang := map[string][]*gang.Member{}
	for i := range f.Nodes {
		node := &f.Nodes[i]
		m.Put(fabric.Node{Name: node.Name, Ready: true, Report: fabric.Read(&node.Spec)})
		nodes[node.Name] = &informers.NodeState{Name: node.Name, Node: &informers.Node{Name: node.Name, Ready: true, GPUs: 8}}
		job := fmt.Sprintf("job-%04d", i/size)
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: fmt.Sprint(job, "-worker-", i%size), Labels: map[string]string{wellknown.GangName: job},
		}}
		p.Spec.NodeName, p.Status.Phase = node.Name, corev1.PodRunning
		member, _ := gang.MemberOf(p, 8)
		byGang[member.Key()] = append(byGang[member.Key()], member)
	}
	for key, members := range byGang {
		gangs[key] = &informers.Gang{Name: key, Members: members}
	}
	return snapshot.Snapshot{
		Generation: 1, Tree: m.Snapshot(time.Unix(1, 0)),
		Nodes: table(nodes), Gangs: snapshot.Table[*informers.Gang]{}.With(gangs),
	}
}

// Where a gang is, by the groups that hold its nodes.
func TestGangsGroups(t *testing.T) {
	for size, want := range map[int]map[string]int{
		16: {"leaf": 64}, 32: {"leaf": 32}, 64: {"spine": 16}, 512: {"spine": 2}, 1024: {"": 1},
	} {
		got := map[string]int{}
		list := new(fleet(t, 1024, size)).GangList()
		for i := range list {
			kind := ""
			if list[i].Group != nil {
				kind = list[i].Group.Kind
			}
			got[kind]++
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("gangs of %d (-want +got):\n%s", size, diff)
		}
	}
}

// A gang in an NVLink domain that is across leaf groups is in that domain.
func TestGangInACrossingDomain(t *testing.T) {
	all := fleet(t, 64, 32)
	levels := fabric.Preset(fabric.ModeAuto, 0)
	m := fabric.New(levels)
	f := fabrics.New(fabrics.Plan{Sizes: []int{24, 24, 16}, Rails: 8})
	for i := range f.Nodes {
		node := &f.Nodes[i]
		node.Spec.NVLinkDomain = fmt.Sprint("x.", i/32)
		m.Put(fabric.Node{Name: node.Name, Ready: true, Report: fabric.Read(&node.Spec)})
	}
	all.Tree = m.Snapshot(time.Unix(1, 0))
	for i, g := range all.GangList() {
		if want := (snapshot.GroupName{Name: fmt.Sprint("nvlink-x.", i), Kind: "nvlink"}); g.Group == nil || *g.Group != want {
			t.Errorf("gang %d is in %+v, want %+v", i, g.Group, want)
		}
	}
}
