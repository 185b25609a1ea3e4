// Package cgroup finds which container of which pod a process is in, by where
// the kubelet and the container runtime have put it in the tree of cgroups.
//
// It owns the spellings of that tree: cgroup v1, v2 and hybrid, the drivers
// systemd and cgroupfs, containerd, CRI-O and cri-dockerd. What it
// does not recognize is an error and never a guess. It asks no API, moves no
// process, and knows nothing of GPUs.
package cgroup

import (
	"errors"
	"fmt"
	"strings"
)

// Container is where a process runs.
type Container struct {
	// PodUID is the pod's UID as the kubelet has it: of a static pod the hash of
	// its file, 32 hexadecimal digits.
	PodUID string
	// ID is the container runtime's, 64 hexadecimal digits; empty if the path
	// does not report it.
	ID string
}

// ErrNoPod means that nothing in the path looks like a pod's cgroup: a process
// of the host, or of a layout that is not known here.
var ErrNoPod = errors.New("in no pod's cgroup")

// Parse reads the text of /proc/<pid>/cgroup, one line per hierarchy:
// "id:controllers:path". A path may be relative to the reader's own cgroup
// namespace ("/../../kubepods-pod….slice/…"). Hierarchies that name no pod do not
// matter if another does; two that name different ones are an error.
func Parse(text string) (Container, error) {
	var found Container
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		fields := strings.SplitN(line, ":", 3)
		if len(fields) != 3 || !strings.HasPrefix(fields[2], "/") {
			return Container{}, fmt.Errorf("line %q is not of a cgroup file", line)
		}
		c := ofPath(strings.TrimSuffix(fields[2], " (deleted)"))
		switch {
		case c.PodUID == "":
			continue
		case found.PodUID != "" && found.PodUID != c.PodUID:
			return Container{}, fmt.Errorf("two pods, %s and %s", found.PodUID, c.PodUID)
		case found.ID != "" && c.ID != "" && found.ID != c.ID:
			return Container{}, fmt.Errorf("two containers, %s and %s", found.ID, c.ID)
		}
		found.PodUID = c.PodUID
		if c.ID != "" {
			found.ID = c.ID
		}
	}
	if found.PodUID == "" {
		return Container{}, ErrNoPod
	}
	return found, nil
}

// ofPath takes the outermost pod: what is below a container's cgroup is named by
// the root user of the container. With runc's systemd notation and the driver
// cgroupfs, slice, runtime and ID are one name with colons.
func ofPath(path string) Container {
	parts := strings.FieldsFunc(path, func(r rune) bool { return r == '/' || r == ':' })
	for i, part := range parts {
		uid := podUID(part)
		if uid == "" {
			continue
		}
		c := Container{PodUID: uid}
		rest := parts[i+1:]
		if strings.Contains(path, part+":") && len(rest) > 1 {
			rest = rest[1:] // The runtime's name.
		}
		if len(rest) > 0 {
			c.ID = containerID(rest[0])
		}
		return c
	}
	return Container{}
}

// podUID is the pod of a cgroup's name, or empty: "pod<uid>" with the driver
// cgroupfs, "kubepods[-burstable|-besteffort]-pod<uid>.slice" with systemd, which
// has underscores for dashes and may have a root before it.
func podUID(name string) string {
	if slice, ok := strings.CutSuffix(name, ".slice"); ok {
		at := strings.LastIndex(slice, "-pod")
		if at < 0 {
			return ""
		}
		class := strings.TrimSuffix(strings.TrimSuffix(slice[:at], "-burstable"), "-besteffort")
		if class != "kubepods" && !strings.HasSuffix(class, "-kubepods") {
			return ""
		}
		return validUID(strings.ReplaceAll(slice[at+len("-pod"):], "_", "-"))
	}
	if uid, ok := strings.CutPrefix(name, "pod"); ok {
		return validUID(uid)
	}
	return ""
}

const (
	uuidLength = 36
	hashLength = 32
	idLength   = 64
)

// validUID is uid if it is a UUID or a static pod's hash.
func validUID(uid string) string {
	switch len(uid) {
	case hashLength:
		if isHex(uid) {
			return uid
		}
	case uuidLength:
		groups := strings.Split(uid, "-")
		if len(groups) != 5 {
			return ""
		}
		for i, length := range []int{8, 4, 4, 4, 12} {
			if len(groups[i]) != length || !isHex(groups[i]) {
				return ""
			}
		}
		return uid
	}
	return ""
}

// containerID is the ID in "cri-containerd-<id>.scope", "crio-<id>" or "<id>".
func containerID(name string) string {
	name = strings.TrimSuffix(name, ".scope")
	at := len(name) - idLength
	if at < 0 || at > 0 && name[at-1] != '-' || !isHex(name[at:]) {
		return ""
	}
	return name[at:]
}

func isHex(s string) bool {
	for _, c := range []byte(s) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}
