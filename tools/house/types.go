package main

import (
	"cmp"
	"fmt"
	"go/token"
	"go/types"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/tools/go/packages"
)

// typeCounts is what go/types shows of the production packages.
type typeCounts struct {
	interfaces int
	single     []string // interfaces of heddle with exactly one implementation of heddle
	fields     []string // struct fields of a function type
	methods    []typeMethods
}

type typeMethods struct {
	name    string
	methods int
	files   int
}

// countTypes loads every package of the root module and of the schedulers'. Implementations
// are looked for in the same module.
func countTypes(root string) (typeCounts, error) {
	var c typeCounts
	base, err := filepath.Abs(root)
	if err != nil {
		return c, err
	}
	for _, module := range []string{".", "cmd/heddle-scheduler", "cmd/heddle-vc-scheduler"} {
		fset := token.NewFileSet()
		named, err := namedTypes(filepath.Join(root, module), fset)
		if err != nil {
			return c, err
		}
		for _, n := range named {
			c.count(fset, base, n, named)
		}
	}
	slices.SortFunc(c.methods, func(a, b typeMethods) int {
		return cmp.Or(cmp.Compare(b.methods, a.methods), cmp.Compare(a.name, b.name))
	})
	slices.Sort(c.single)
	slices.Sort(c.fields)
	return c, nil
}

// namedTypes are the types of a module's production packages.
func namedTypes(dir string, fset *token.FileSet) (named []*types.Named, err error) {
	all, err := packages.Load(&packages.Config{
		Mode: packages.NeedName | packages.NeedTypes | packages.NeedImports | packages.NeedDeps | packages.NeedModule |
			packages.NeedFiles,
		Dir: dir, Fset: fset,
	}, "./...")
	if err != nil {
		return nil, fmt.Errorf("load packages of %s: %w", dir, err)
	}
	for _, p := range all {
		if len(p.Errors) > 0 {
			return nil, fmt.Errorf("load %s: %w", p.PkgPath, p.Errors[0])
		}
		if p.Module == nil {
			continue
		}
		rel := strings.TrimPrefix(strings.TrimPrefix(p.PkgPath, p.Module.Path), "/")
		if strings.HasPrefix(rel, "test/") || strings.HasPrefix(rel, "tools/") {
			continue
		}
		scope := p.Types.Scope()
		for _, name := range scope.Names() {
			object, ok := scope.Lookup(name).(*types.TypeName)
			if !ok || object.IsAlias() || generated(fset, object) {
				continue
			}
			if n, ok := object.Type().(*types.Named); ok {
				named = append(named, n)
			}
		}
	}
	return named, nil
}

func generated(fset *token.FileSet, o types.Object) bool {
	return strings.HasPrefix(filepath.Base(fset.Position(o.Pos()).Filename), "zz_generated")
}

func (c *typeCounts) count(fset *token.FileSet, base string, n *types.Named, all []*types.Named) {
	name := strings.TrimPrefix(n.Obj().Pkg().Path(), "github.com/heddle-dev/heddle/") + "." + n.Obj().Name()
	files := map[string]bool{}
	methods := 0
	for i := range n.NumMethods() {
		if generated(fset, n.Method(i)) {
			continue
		}
		methods++
		files[fset.Position(n.Method(i).Pos()).Filename] = true
	}
	if methods > 0 {
		c.methods = append(c.methods, typeMethods{name, methods, len(files)})
	}
	switch u := n.Underlying().(type) {
	case *types.Struct:
		for i := range u.NumFields() {
			if _, ok := u.Field(i).Type().Underlying().(*types.Signature); ok {
				place := fset.Position(u.Field(i).Pos())
				if rel, err := filepath.Rel(base, place.Filename); err == nil {
					place.Filename = rel
				}
				c.fields = append(c.fields, fmt.Sprintf("%s:%d %s.%s", place.Filename, place.Line, name, u.Field(i).Name()))
			}
		}
	case *types.Interface:
		if u.NumMethods() == 0 || n.TypeParams().Len() > 0 {
			return
		}
		c.interfaces++
		if implementations(n, u, all) == 1 {
			c.single = append(c.single, name)
		}
	}
}

// implementations counts the non-interface types of heddle that have the
// methods of u. Generic types do not count.
func implementations(self *types.Named, u *types.Interface, all []*types.Named) (count int) {
	for _, n := range all {
		if n == self || types.IsInterface(n) || n.TypeParams().Len() > 0 {
			continue
		}
		if types.Implements(n, u) || types.Implements(types.NewPointer(n), u) {
			count++
		}
	}
	return count
}

func (c *typeCounts) print(out io.Writer, list bool) {
	fmt.Fprintf(out, "%-46s %d of %d\n", "interfaces with one implementation", len(c.single), c.interfaces)
	fmt.Fprintf(out, "%-46s %d\n", "function-typed struct fields", len(c.fields))
	if len(c.methods) > 0 {
		top := c.methods[0]
		fmt.Fprintf(out, "%-46s %d in %d files (%s)\n", "methods of the largest type", top.methods, top.files, top.name)
	}
	if !list {
		return
	}
	fmt.Fprintln(out, "\ninterfaces with one implementation:\n  "+strings.Join(c.single, "\n  "))
	fmt.Fprintln(out, "\nfunction-typed struct fields:\n  "+strings.Join(c.fields, "\n  "))
	fmt.Fprintln(out, "\nlargest types:")
	for _, t := range c.methods[:min(len(c.methods), 12)] {
		fmt.Fprintf(out, "  %3d methods in %2d files  %s\n", t.methods, t.files, t.name)
	}
}
