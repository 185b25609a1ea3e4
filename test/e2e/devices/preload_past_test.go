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

// wait loads its libraries, and ends by a signal.
const wait = "#include <unistd.h>\nint main(void) { for (;;) pause(); }"

// limits is a library for the tests. Library one answers dlsym too, as HAMi-core does
// (libvgpu.c): for its own functions of any handle.
const limits = `
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>
#include <unistd.h>
__attribute__((constructor)) static void loaded(void) { (void)!write(2, "library %[1]s\n", 12); }
const char *limiter(void) { return "%[1]s"; }
#ifdef one
void *dlsym(void *handle, const char *name) {
	void *(*real)(void *, const char *) = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
	if (!real)
		real = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.17");
	return strcmp(name, "limiter") ? real(handle, name) : (void *)limiter;
}
#endif`

// direct asks a function of a library opened by its path, which is in a namespace of its own
// with "apart".
const direct = `
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int main(int n, char **arg) {
	void *driver = strcmp(arg[2], "apart") ? dlopen(arg[1], RTLD_NOW) : dlmopen(LM_ID_NEWLM, arg[1], RTLD_NOW);
	if (!driver) {
		puts(dlerror());
		return 1;
	}
	const char *(*ask)(void) = dlsym(driver, arg[3]);
	printf("%s %s\n", ask ? ask() : "none", getenv("CUDA_DEVICE_MEMORY_LIMIT_0"));
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
		"/direct":    program("direct", direct),
		"/driver.so": program("driver.so", `const char *limiter(void) { return "driver"; }`, "-shared", "-fPIC", "-Wl,-soname,driver.so"),
	}
	// Is linked with the driver's library, which the image then has too, under its path here.
	files["/uses.so"] = program("uses.so", `const char *limiter(void); const char *uses(void) { return limiter(); }`,
		"-shared", "-fPIC", "-nostdlib", "-Wl,--no-as-needed,-rpath,"+dir, files["/driver.so"])
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

// pastPreload runs these programs in containers with 4 GiB, one with library two and one with
// library one, and fails the test unless the library is in exactly those where
// docs/enforcers.md has it hold.
func (r *rig) pastPreload(t *testing.T) {
	t.Helper()
	const plain, answers = "has-two", "has-one"
	type past struct {
		pod, name, want string
		command         []string
	}
	rows := []past{
		{plain, "kubectl exec", "two 4096m", []string{"/probe"}},
		{plain, "statically linked", "none 4096m", []string{"/alone"}},
		{plain, "a loader of the image's own", "none 4096m", []string{"/loader", "/probe"}},
		{plain, "chroot", "none 4096m", []string{"/chroot", "/jail", "/probe"}},
		{plain, "another library before it", "other 4096m", []string{"/with", "LD_PRELOAD", "/other.so", "/probe"}},
		{plain, "what is linked with the driver's library", "two 4096m", []string{"/direct", "/uses.so", "here", "uses"}},
		{plain, "the driver's library opened by its path", "driver 4096m", []string{"/direct", "/driver.so", "here", "limiter"}},
		{plain, "dlmopen", "driver 4096m", []string{"/direct", "/driver.so", "apart", "limiter"}},
		{answers, "by its path, dlsym answered", "one 4096m", []string{"/direct", "/driver.so", "here", "limiter"}},
		{answers, "dlmopen, dlsym answered", "one 4096m", []string{"/direct", "/driver.so", "apart", "limiter"}},
		{answers, "within what dlmopen opened", "driver 4096m", []string{"/direct", "/uses.so", "apart", "uses"}},
		{plain, "a limit of the process's own", "two 80000m", []string{"/with", "CUDA_DEVICE_MEMORY_LIMIT_0", "80000m", "/probe"}},
	}
	if _, err := exec.LookPath(muslCompiler); err == nil {
		// Its loader reads no list.
		rows = append(rows, past{plain, "musl", "none 4096m", []string{"/musl"}})
	} else {
		t.Log("no program with musl: ", err)
	}
	for _, tt := range rows {
		out, err := r.Kubectl(t.Context(), append([]string{"exec", tt.pod, "--"}, tt.command...)...)
		if got := strings.TrimSpace(out); err != nil || got != tt.want {
			t.Errorf("%s: the library that answers and the limit are %q, want %q (%v)", tt.name, got, tt.want, err)
		}
	}
}
