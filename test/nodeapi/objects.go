package nodeapi

import (
	"slices"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// EditNode replaces the Node by a changed copy.
func (s *Server) EditNode(change func(*corev1.Node)) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	s.editNode(change)
}

func (s *Server) editNode(change func(*corev1.Node)) {
	next := s.Node.DeepCopy()
	if next.Annotations == nil {
		next.Annotations = map[string]string{}
	}
	change(next)
	s.version++
	next.ResourceVersion = strconv.Itoa(s.version)
	s.Node = next
	if !s.Absent {
		s.send("nodes", event("MODIFIED", next))
	}
}

// Show lets the Node be there, or not.
func (s *Server) Show(there bool) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	s.Absent = !there
	s.version++
	s.Node = s.Node.DeepCopy()
	s.Node.ResourceVersion = strconv.Itoa(s.version)
	what := "DELETED"
	if there {
		what = "ADDED"
	}
	s.send("nodes", event(what, s.Node))
}

func (s *Server) send(kind string, e metav1.WatchEvent) {
	for c, of := range s.watches {
		if of == kind {
			c <- e
		}
	}
}

// AddPod adds a copy of a pod.
func (s *Server) AddPod(p *corev1.Pod) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	s.version++
	p = p.DeepCopy()
	p.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	p.ResourceVersion = strconv.Itoa(s.version)
	s.Pods = append(s.Pods, p)
	if s.bound(p) {
		s.send("pods", event("ADDED", p))
	}
}

// RemovePods deletes all pods.
func (s *Server) RemovePods() {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	s.version++
	for _, p := range s.Pods {
		s.send("pods", event("DELETED", p))
	}
	s.Pods = nil
}

// EditPod replaces a pod by a changed copy. One that gets its node is new to the
// watch of that node.
func (s *Server) EditPod(name string, change func(*corev1.Pod)) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	s.editPod(name, change)
}

func (s *Server) editPod(name string, change func(*corev1.Pod)) *corev1.Pod {
	at := slices.IndexFunc(s.Pods, func(p *corev1.Pod) bool { return p.Name == name })
	if at < 0 {
		s.tb.Errorf("there is no pod %s", name)
		return nil
	}
	what := "MODIFIED"
	if !s.bound(s.Pods[at]) {
		what = "ADDED"
	}
	p := s.Pods[at].DeepCopy()
	if p.Annotations == nil {
		p.Annotations = map[string]string{}
	}
	change(p)
	s.version++
	p.ResourceVersion = strconv.Itoa(s.version)
	s.Pods = slices.Clone(s.Pods)
	s.Pods[at] = p
	if s.bound(p) {
		s.send("pods", event(what, p))
	}
	return p
}

// Pod is a pod as it is now.
func (s *Server) Pod(name string) *corev1.Pod {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	at := slices.IndexFunc(s.Pods, func(p *corev1.Pod) bool { return p.Name == name })
	if at < 0 {
		s.tb.Fatalf("there is no pod %s", name)
	}
	return s.Pods[at]
}

// Wait blocks until ok, which is called with Mu held.
func (s *Server) Wait(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	for late := time.After(5 * time.Minute); ; {
		s.Mu.Lock()
		done, note := ok(), s.note
		s.Mu.Unlock()
		if done {
			return
		}
		select {
		case <-note:
		case <-tb.Context().Done():
		case <-late:
			s.Mu.Lock()
			defer s.Mu.Unlock()
			tb.Fatalf("%s did not come; writes %q, events %v", what, s.Writes, s.Events)
		}
	}
}
