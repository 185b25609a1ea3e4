package image

import (
	"bufio"
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// library is one shared object (or the loader) that a program needs.
type library struct {
	dst string // path in the image
	src string // file of this machine
	// needsPath is set when the loader does not look in this directory by itself:
	// the image has no ld.so.cache, which is where ld.so.conf directories are known.
	needsPath bool
}

// search looks for shared libraries the way ld.so(8) does, below a root.
type search struct {
	root    string   // "/" but in tests
	builtin []string // the loader's own directories
	conf    []string // directories out of ld.so.conf
}

func hostSearch() search { return newSearch("/") }

func newSearch(root string) search {
	builtin := []string{"/lib", "/usr/lib", "/lib64", "/usr/lib64"}
	// Debian's loader knows the multiarch directories without a cache.
	for _, pattern := range []string{"lib/*-linux-gnu", "usr/lib/*-linux-gnu"} {
		matches, _ := filepath.Glob(filepath.Join(root, pattern)) // Only a malformed pattern is an error.
		for _, m := range matches {
			builtin = append(builtin, "/"+strings.TrimPrefix(strings.TrimPrefix(m, root), "/"))
		}
	}
	return search{root: root, builtin: builtin, conf: readConf(root, "/etc/ld.so.conf", 0)}
}

// readConf returns the directories named in an ld.so.conf and the files it
// includes. A missing file names none.
func readConf(root, name string, depth int) []string {
	const maxDepth = 8 // An include of itself must end.
	data, err := os.ReadFile(filepath.Join(root, name))
	if err != nil || depth > maxDepth {
		return nil
	}
	var dirs []string
	lines := bufio.NewScanner(bytes.NewReader(data))
	for lines.Scan() {
		line, _, _ := strings.Cut(lines.Text(), "#")
		fields := strings.Fields(line)
		switch {
		case len(fields) == 0:
		case fields[0] == "include" && len(fields) > 1:
			pattern := fields[1]
			if !path.IsAbs(pattern) {
				pattern = path.Join(path.Dir(name), pattern)
			}
			files, _ := filepath.Glob(filepath.Join(root, pattern)) // Only a malformed pattern is an error.
			for _, f := range files {
				dirs = append(dirs, readConf(root, "/"+strings.TrimPrefix(strings.TrimPrefix(f, root), "/"), depth+1)...)
			}
		default:
			dirs = append(dirs, path.Clean(fields[0]))
		}
	}
	return dirs
}

// object is what one ELF file asks for.
type object struct {
	machine elf.Machine
	class   elf.Class
	interp  string
	needed  []string
	runpath []string // $ORIGIN resolved, paths on this machine
}

// closure lists the loader and the libraries that the program at file needs, each
// once. A file that is not ELF, or is statically linked, needs none.
func (s search) closure(file string) ([]library, error) {
	first, err := readObject(file)
	if err != nil || first == nil {
		return nil, err
	}
	found := map[string]library{}
	var loader string // Its own name: musl's is the C library too.
	if first.interp != "" {
		lib := library{dst: first.interp, src: filepath.Join(s.root, first.interp)}
		found[first.interp] = lib
		if file, err := filepath.EvalSymlinks(lib.src); err == nil {
			loader = path.Base(file)
		}
	}
	queue := []*object{first}
	for len(queue) > 0 {
		o := queue[0]
		queue = queue[1:]
		for _, name := range o.needed {
			if _, seen := found[name]; seen || name == loader || name == path.Base(first.interp) {
				continue
			}
			lib, next, err := s.find(name, o, first.runpath)
			if err != nil {
				return nil, err
			}
			found[name] = lib
			queue = append(queue, next)
		}
	}
	libs := make([]library, 0, len(found))
	for _, lib := range found {
		libs = append(libs, lib)
	}
	slices.SortFunc(libs, func(a, b library) int { return strings.Compare(a.dst, b.dst) })
	return libs, nil
}

// find looks a DT_NEEDED name up: first the run paths of the object and of the
// program, then the loader's directories, then those of ld.so.conf.
func (s search) find(name string, by *object, programPath []string) (library, *object, error) {
	type place struct {
		dir     string
		builtin bool
	}
	var places []place
	for _, d := range s.builtin {
		places = append(places, place{d, true})
	}
	for _, d := range s.conf {
		places = append(places, place{d, slices.Contains(s.builtin, d)})
	}
	// A run path comes first in the search and is not known to the loader in the
	// image when it was relative to the program's place on this machine.
	for _, d := range slices.Backward(append(slices.Clone(by.runpath), programPath...)) {
		places = append([]place{{d, slices.Contains(s.builtin, d)}}, places...)
	}
	for _, p := range places {
		src := filepath.Join(s.root, p.dir, name)
		o, err := readObject(src)
		if errors.Is(err, os.ErrNotExist) || o == nil {
			continue
		}
		if err != nil {
			return library{}, nil, fmt.Errorf("read %s: %w", src, err)
		}
		if o.machine != by.machine || o.class != by.class {
			continue // A library of another architecture, as on multiarch systems.
		}
		return library{dst: path.Join(p.dir, name), src: src, needsPath: !p.builtin}, o, nil
	}
	return library{}, nil, fmt.Errorf("shared library %s: %w", name, os.ErrNotExist)
}

// readObject reads the dynamic section. It returns nil for what is not ELF.
func readObject(file string) (*object, error) {
	raw, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer func() { _ = raw.Close() }()
	magic := make([]byte, len(elf.ELFMAG))
	if n, _ := raw.ReadAt(magic, 0); string(magic[:n]) != elf.ELFMAG {
		return nil, nil //nolint:nilnil // not ELF is an answer, not a fault
	}
	f, err := elf.NewFile(raw)
	if err != nil {
		return nil, err
	}
	o := &object{machine: f.Machine, class: f.Class}
	for _, p := range f.Progs {
		if p.Type != elf.PT_INTERP {
			continue
		}
		b := make([]byte, p.Filesz)
		if _, err := p.ReadAt(b, 0); err != nil {
			return nil, fmt.Errorf("read interpreter: %w", err)
		}
		o.interp = strings.TrimRight(string(b), "\x00")
	}
	// A statically linked file has no dynamic section: no libraries, no run path.
	o.needed, _ = f.ImportedLibraries()
	for _, tag := range []elf.DynTag{elf.DT_RPATH, elf.DT_RUNPATH} {
		values, _ := f.DynString(tag)
		for _, v := range values {
			for dir := range strings.SplitSeq(v, ":") {
				dir = strings.NewReplacer("$ORIGIN", filepath.Dir(file), "${ORIGIN}", filepath.Dir(file)).Replace(dir)
				if dir != "" {
					o.runpath = append(o.runpath, filepath.Clean(dir))
				}
			}
		}
	}
	return o, nil
}
