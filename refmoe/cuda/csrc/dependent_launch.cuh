// Launches that overlap: a kernel may start before the one in front of it has ended (programmatic dependent launch), and
// then says itself from where on it needs what that one wrote. Launched in the ordinary way, both instructions do nothing.
//
//      kernel 1   ... launch_dependents ........ stores ... end
//      kernel 2                 start, loads of weights ... wait_for_launches | loads of what kernel 1 wrote, stores
//
// Two rules keep a chain of such launches right. What an earlier kernel of the chain may still be writing is read behind
// the wait alone, by plain loads: __ldg says that nobody writes meanwhile, and may be moved ahead of the wait. And every
// kernel waits before it ends, on every path: only then does the end of kernel 2 say that kernel 1 has ended too.
#pragma once

namespace refmoe {

/// Lets the next kernel of the chain start once every CTA of this one has come here or ended. It makes nothing visible.
__device__ __forceinline__ void launch_dependents() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

/// Waits until the kernels in front of this one have ended and all that they wrote is visible.
__device__ __forceinline__ void wait_for_launches() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

}  // namespace refmoe
