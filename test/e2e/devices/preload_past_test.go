//go:build e2e && linux

package devices

import (
	"bytes"
	"debug/elf"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// probe prints the library that answers a call, and a limit in its environment. A library for
// the tests answers with its name.
const probe = `
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#ifdef ALONE
__attribute__((weak)) const char *limiter(void);
#else
static const char *(*limiter)(void);
#endif
int main(void) {
#ifndef ALONE
	limiter = dlsym(RTLD_DEFAULT, "limiter");
#endif
	const char *limit = getenv("CUDA_DEVICE_MEMORY_LIMIT_0");
	printf("%s %s\n", limiter ? limiter() : "none", limit ? limit : "unlimited");
	return 0;
}`

// with sets a variable, jail changes the root directory; then they start a program. They are
// statically linked, so that no library is in them.
const (
	with = `
#include <stdlib.h>
#include <unistd.h>
int main(int n, char **arg) { setenv(arg[1], arg[2], 1); return execl(arg[3], arg[3], (char *)0); }`
	jail = `
#include <unistd.h>
int main(int n, char **arg) { return chroot(arg[1]) || chdir("/") || execl(arg[2], arg[2], (char *)0); }`
)

// direct asks the driver's library itself, opened by its path, in a namespace of its own with "apart".
const direct = `
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int main(int n, char **arg) {
	void *driver = n > 2 && !strcmp(arg[2], "apart") ? dlmopen(LM_ID_NEWLM, arg[1], RTLD_NOW) : dlopen(arg[1], RTLD_NOW);
	if (!driver) {
		puts(dlerror());
		return 1;
	}
	const char *(*limiter)(void) = dlsym(driver, "limiter");
	printf("%s %s\n", limiter ? limiter() : "none", getenv("CUDA_DEVICE_MEMORY_LIMIT_0"));
	return 0;
}`

// reach writes into the first other region of preload that /proc leads to, or opens a device
// node of the host's.
const reach = `
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
int main(int n, char **arg) {
	if (n > 1) {
		puts(open(arg[1], O_RDONLY | O_NONBLOCK) < 0 ? "closed" : "opened");
		return 0;
	}
	DIR *all = opendir("/proc");
	for (struct dirent *e; (e = readdir(all));) {
		char path[512];
		snprintf(path, sizeof path, "/proc/%s/root/usr/local/vgpu/region/reached", e->d_name);
		if (e->d_name[0] >= '1' && e->d_name[0] <= '9' && open(path, O_CREAT | O_WRONLY, 0600) >= 0) {
			puts("wrote");
			return 0;
		}
	}
	puts("none");
	return 0;
}`

// muslCompiler is of Debian's musl-tools; without it no program of a distribution like Alpine runs.
const muslCompiler = "musl-gcc"

// pastPrograms are what containers run to get past a preloaded library, by their paths in the
// image.
func pastPrograms(t *testing.T, dir string) map[string]string {
	t.Helper()
	program := func(name, source string, flags ...string) string {
		return compile(t, filepath.Join(dir, name), source, flags...)
	}
	files := map[string]string{
		"/probe": program("probe", probe), "/alone": program("alone", probe, "-static", "-DALONE"),
		"/with": program("with", with, "-static"), "/chroot": program("chroot", jail, "-static"),
		"/other.so":  program("other.so", `const char *limiter(void) { return "other"; }`, "-shared", "-fPIC"),
		"/driver.so": program("driver.so", `const char *limiter(void) { return "driver"; }`, "-shared", "-fPIC"),
		"/direct":    program("direct", direct),
		"/reach":     program("reach", reach, "-static"),
	}
	if _, err := exec.LookPath(muslCompiler); err == nil {
		files["/musl"] = compileBy(t, muslCompiler, filepath.Join(dir, "musl"), probe)
	}
	// Another root has the program and its loader, and no list of libraries.
	loader := interpreter(t, files["/probe"])
	libc, err := exec.CommandContext(t.Context(), "gcc", "-print-file-name=libc.so.6").Output()
	if err != nil {
		t.Fatal(err)
	}
	at := filepath.Clean(strings.TrimSpace(string(libc)))
	files["/jail/probe"], files["/jail"+loader], files["/jail"+at] = files["/probe"], loader, at
	// A loader that reads another list, as that of a distribution without glibc reads none.
	content, err := os.ReadFile(loader)
	own := bytes.Replace(content, []byte("/etc/ld.so.preload"), []byte("/etc/ld.so.another"), 1)
	if files["/loader"] = filepath.Join(dir, "loader"); bytes.Equal(own, content) {
		t.Fatalf("%s does not name its list", loader)
	}
	if err = errors.Join(err, os.WriteFile(files["/loader"], own, 0o755)); err != nil {
		t.Fatal(err)
	}
	return files
}

// interpreter is the loader that a program names.
func interpreter(t *testing.T, program string) string {
	t.Helper()
	f, err := elf.Open(program)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			path, err := io.ReadAll(p.Open())
			if err != nil {
				t.Fatal(err)
			}
			return strings.TrimRight(string(path), "\x00")
		}
	}
	t.Fatalf("%s has no loader", program)
	return ""
}

// pastPreload runs these programs in a container with library two and 4 GiB, and fails the test
// unless the library is in exactly those where docs/enforcers.md has it hold.
func (r *rig) pastPreload(t *testing.T, pod string) {
	t.Helper()
	type past struct {
		name, want string
		command    []string
	}
	rows := []past{
		{"kubectl exec", "two 4096m", []string{"/probe"}},
		{"statically linked", "none 4096m", []string{"/alone"}},
		{"a loader of the image's own", "none 4096m", []string{"/loader", "/probe"}},
		{"chroot", "none 4096m", []string{"/chroot", "/jail", "/probe"}},
		{"another library before it", "other 4096m", []string{"/with", "LD_PRELOAD", "/other.so", "/probe"}},
		{"the driver's library opened by its path", "driver 4096m", []string{"/direct", "/driver.so"}},
		{"dlmopen", "driver 4096m", []string{"/direct", "/driver.so", "apart"}},
		{"a limit of the process's own", "two 80000m", []string{"/with", "CUDA_DEVICE_MEMORY_LIMIT_0", "80000m", "/probe"}},
	}
	if _, err := exec.LookPath(muslCompiler); err == nil {
		// Its loader reads no list.
		rows = append(rows, past{"musl", "none 4096m", []string{"/musl"}})
	} else {
		t.Log("no program with musl: ", err)
	}
	for _, tt := range rows {
		out, err := r.Kubectl(t.Context(), append([]string{"exec", pod, "--"}, tt.command...)...)
		if got := strings.TrimSpace(out); err != nil || got != tt.want {
			t.Errorf("%s: the library that answers and the limit are %q, want %q (%v)", tt.name, got, tt.want, err)
		}
	}
}

// reachedBySpec runs pods whose specs ask for more than devices, beside a pod with a region of preload,
// and fails the test unless they reach what docs/enforcers.md lists.
func (r *rig) reachedBySpec(t *testing.T) {
	t.Helper()
	yes := true
	for _, tt := range []struct {
		name, region, device string
		more                 func(*corev1.Pod)
	}{
		{"beside", "none", "closed", func(*corev1.Pod) {}},
		{"one-pid-namespace", "wrote", "closed", func(p *corev1.Pod) { p.Spec.ShareProcessNamespace = &yes }},
		{"host-pid", "wrote", "closed", func(p *corev1.Pod) { p.Spec.HostPID = true }},
		{"privileged", "none", "opened", func(p *corev1.Pod) {
			p.Spec.Containers[1].SecurityContext = &corev1.SecurityContext{Privileged: &yes}
		}},
	} {
		p := r.pod(tt.name, box{more: share(5, 1)})
		p.Spec.Containers = append(p.Spec.Containers, box{name: "other"}.container())
		for i := range p.Spec.Containers {
			p.Spec.Containers[i].Image = loaderImage
		}
		tt.more(p)
		r.run(t, p)
		// A node that no container has by itself.
		for want, command := range map[string][]string{tt.region: {"/reach"}, tt.device: {"/reach", "/dev/kmsg"}} {
			out, err := r.Kubectl(t.Context(), append([]string{"exec", tt.name, "-c", "other", "--"}, command...)...)
			if got := strings.TrimSpace(out); err != nil || got != want {
				t.Errorf("pod %s, another container: %v answers %q, want %q (%v)", tt.name, command, got, want, err)
			}
		}
		r.remove(t, tt.name)
	}
}
