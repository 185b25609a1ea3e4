package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// watchesOf counts the inotify instances of this process that watch a directory
// (proc_pid_fdinfo(5)); fs.inotify.max_user_instances is 128 for all of root's processes.
func watchesOf(t *testing.T, dir string) int {
	t.Helper()
	var stat syscall.Stat_t
	if err := syscall.Stat(dir, &stat); err != nil {
		t.Fatal(err)
	}
	infos, err := filepath.Glob("/proc/self/fdinfo/*")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, path := range infos {
		// One that is closed meanwhile watches nothing.
		if info, err := os.ReadFile(path); err == nil && strings.Contains(string(info), fmt.Sprintf(" ino:%x ", stat.Ino)) {
			n++
		}
	}
	return n
}

func TestOneWatchServesAllResources(t *testing.T) {
	r := newRig(t, "dgx-h100").run()
	r.list(gpus, 8, 0)
	r.list(hcas, 512, 0)
	if got := watchesOf(t, r.kubelet.PluginDir()); got != 1 {
		t.Errorf("the kubelet's directory is watched %d times", got)
	}
}
