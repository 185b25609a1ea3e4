package vm

import (
	"os/exec"
	"syscall"
)

// endWithUs makes the kernel kill the child should this process be killed
// before it could.
func endWithUs(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
