package guest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/heddle-dev/heddle/test/vm"
)

// Main is for TestMain. It prepares the guest, runs m's tests, reports the
// outcome and ends the guest; in a guest it does not return. Anywhere else it
// reports it and runs nothing.
func Main(m *testing.M) {
	if os.Getpid() != 1 || os.Getenv(vm.EnvGuest) == "" {
		fmt.Fprintln(os.Stderr, "SKIP: these tests run as the init of a guest only; see test/vm")
		return
	}
	code := byte(vm.CodeFailed)
	if err := Boot(); err != nil {
		fmt.Fprintln(os.Stderr, "guest:", err)
	} else if m.Run() == 0 {
		code = vm.CodePassed
	}
	end(code)
}

// Boot mounts the kernel's filesystems and loads the modules. It is for the init of a guest.
func Boot() error { return errors.Join(mount(), loadModules("/modules")) }

func mount() error {
	for _, fs := range [][2]string{{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}, {"tmpfs", "/tmp"}} {
		if err := unix.Mount(fs[0], fs[1], fs[0], 0, ""); err != nil {
			return fmt.Errorf("mount %s: %w", fs[1], err)
		}
	}
	return nil
}

// loadModules loads the files of dir in the order of their names.
func loadModules(dir string) error {
	files, err := filepath.Glob(filepath.Join(dir, "*.ko"))
	if err != nil {
		return fmt.Errorf("modules: %w", err)
	}
	slices.Sort(files)
	for _, file := range files {
		if err := loadModule(file); err != nil {
			return fmt.Errorf("module %s: %w", filepath.Base(file), err)
		}
	}
	return nil
}

func loadModule(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.FinitModule(int(f.Fd()), "", 0)
}

// end passes QEMU the outcome, which ends it. Should that fail, the guest powers
// off and its end counts as a death.
func end(code byte) {
	const drain = 1 // tcdrain(3) is TCSBRK with an argument that is not 0.
	_ = unix.IoctlSetInt(1, unix.TCSBRK, drain)
	port, err := os.OpenFile("/dev/port", os.O_RDWR, 0)
	if err == nil {
		_, err = port.WriteAt([]byte{code}, vm.DebugExitPort)
	}
	fmt.Fprintln(os.Stderr, "guest: no outcome:", err)
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}
